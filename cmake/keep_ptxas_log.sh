#!/bin/sh
# Runs a compiler and keeps what ptxas says of each kernel in OBJECT.ptxas; everything else it says is passed on.
object=
previous=
for word in "$@"; do
  if [ "$previous" = "-o" ]; then object=$word; fi
  previous=$word
done
if [ -z "$object" ]; then exec "$@"; fi
"$@" 2> "$object.ptxas"
code=$?
grep -v -e '^ptxas info' -e 'bytes stack frame' "$object.ptxas" >&2
exit $code
