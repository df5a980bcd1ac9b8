"""HTTP over sockets: connections that are kept, requests and answers, TLS, proxies.

Not here: what a daemon or a registry means by an answer, and when a request is repeated.
"""
