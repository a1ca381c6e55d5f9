#!/bin/sh
# Checks the model in range.pml whole, and that each of its broken variants fails. With options such as -DNO_RELIST it checks this variant
# and prints the shortest history of a failure.
set -eu

model=$(cd "$(dirname "$0")" && pwd)/range.pml
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

# check tries all histories of a variant.
check() {
	rm -f ./*.trail
	spin -a "$@" "$model"
	cc -w -O1 -DBFS -DSAFETY -DNOREDUCE -DSFH -DNOBOUNDCHECK -o pan pan.c
	./pan -w22 >out
	echo "model $*: $(sed -n 's/^ *\([0-9]*\) states, stored$/\1/p' out) states, $(grep -o 'errors: .*' out)"
}

# whole fails unless a variant has no failure and no history was left out.
whole() {
	check "$@"
	if ! grep -q 'errors: 0' out || grep -qE 'out of memory|not completed|reached -DMEMLIM' out; then
		grep '^pan' out || true
		[ ! -f range.pml.trail ] || spin -T -t -k range.pml.trail "$@" "$model" | grep -E '^ *(machine|agent|a tick|the|faults) '
		exit 1
	fi
}

if [ "$#" -gt 0 ]; then
	whole "$@"
	exit 0
fi
whole -DBLOCKS=2
whole -DBLOCKS=1 -DMACHINES=3
whole -DBLOCKS=1 -DLATE=2 -DVALIDITY=2 -DDRIFT=1
for broken in NO_VERSION TRUST_WRITE NO_REWRITE NO_RELIST KEEP_CLAIM GIVEBACK_FIRST GRACE=0 'GRACE=VALIDITY -DVALIDITY=2 -DDRIFT=1'; do
	# shellcheck disable=SC2086 # several options
	check -DBLOCKS=1 -D$broken
	grep -q '^pan.*assertion violated' out || {
		echo "the model does not find what is broken by $broken" >&2
		exit 1
	}
done
