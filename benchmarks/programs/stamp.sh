#!/bin/bash
# A replica that says when it is up, as the name of a file, and then lives on for as many seconds as told.
# Nothing but the shell itself runs until the time is taken.
: > "$1/$EPOCHREALTIME.$$"
exec sleep "$2"
