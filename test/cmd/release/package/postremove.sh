#!/bin/sh
# Runs after the files of the package are removed. Only a purge removes the node's state.
set -e
[ "${1:-}" = purge ] || exit 0
if [ -e /run/cnibox/node.db ]; then
	echo "cnibox: containers may be attached: /run/cnibox has their records. Reboot the node, or remove /run/cnibox, and repeat the purge." >&2
	exit 1
fi
rm -rf /var/lib/cnibox
