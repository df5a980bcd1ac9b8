#!/bin/sh
# A replica that says when it is up, by the time of a file that it makes, and then lives on for as many seconds
# as told. Nothing but the smallest of shells runs until then, so that what is measured is the launcher.
: > "$1/$$"
exec sleep "$2"
