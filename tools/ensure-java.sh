#!/bin/sh
# Finds a Java 17+ runtime for Spark; installs one where that can be done without asking, otherwise says what to do.
set -u

java_major() {
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java)"; do
    [ -n "$candidate" ] && [ -x "$candidate" ] || continue
    major=$(java_major "$candidate")
    [ -n "$major" ] && [ "$major" -ge 17 ] && exit 0
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing a Java 17 runtime (Spark needs one)..."
    { apt-get update -qq && apt-get install -y -qq openjdk-17-jre-headless; } >/dev/null && exit 0
fi
echo "Spark needs Java 17 or later: install a JRE (for example openjdk-17-jre-headless) or set JAVA_HOME." >&2
exit 1
