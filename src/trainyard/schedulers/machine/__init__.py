"""What schedulers share that run programs on this machine: processes, help of the kernel, documents."""
