#!/bin/sh
# Builds the program for each supported processor, as an ordinary and as a position-independent executable, with and without Go's
# frozen FIPS 140-3 module. Each result must need no library, and record its version and how it was built. An ordinary executable
# must need no dynamic loader either. Go leaves the relocation of a position-independent one to the loader.
#
# Builds run one after the other: two at a time would compile the packages that they share twice.
set -eu
cd "$(dirname "$0")/.."
tags=$1 # of the product
: "${GO:=go}"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

fail() {
	echo "build-matrix: $1" >&2
	exit 1
}

for arch in amd64 arm64; do
	for fips in off v1.0.0; do
		for mode in exe pie; do
			name=linux/$arch,$mode,GOFIPS140=$fips
			began=$(date +%s)
			CGO_ENABLED=0 GOOS=linux GOARCH=$arch GOFIPS140=$fips "$GO" build -trimpath -buildmode="$mode" -tags "$tags" -ldflags='-s -w' -o "$out/cnibox" .
			info=$("$GO" version -m "$out/cnibox")
			for want in "buildmode=$mode" GOOS=linux "GOARCH=$arch" CGO_ENABLED=0 $([ $fips = off ] || echo "GOFIPS140=$fips"); do
				echo "$info" | grep -q "^	build	-*$want" || fail "$name: 'go version -m' does not show $want: $info"
			done
			# The go command derives the version from the checkout; a copy of the sources without one is "(devel)".
			version=$(echo "$info" | awk '$1 == "mod" { print $3 }')
			[ -n "$version" ] && { [ ! -d .git ] || [ "$version" != "(devel)" ]; } || fail "$name: version '$version'"
			dynamic='\(NEEDED\)'
			[ $mode = pie ] || dynamic="$dynamic|INTERP"
			headers=$(readelf --wide --program-headers --dynamic "$out/cnibox")
			! echo "$headers" | grep -E "$dynamic" || fail "$name is not static"
			echo "$name: $version, $(stat -c %s "$out/cnibox") bytes, $(($(date +%s) - began)) s"
		done
	done
done
