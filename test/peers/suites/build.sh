#!/bin/sh
# Builds the test suites of the reference plugins into the directory OUT, from a copy of their Go module: build.sh OUT. In the suites
# that call the functions of a plugin, shim/shim.go stands for that plugin. It executes the plugin of CNIBOX_PLUGIN.
set -eu
out=$1
here=$(cd "$(dirname "$0")" && pwd)
go=${GO:-go}
cd "$here"
"$go" mod download
module=$("$go" list -m -f '{{.Dir}}' github.com/containernetworking/plugins)
rm -rf "$out"
mkdir -p "$out"
cp -R "$module" "$out/src"
chmod -R u+w "$out/src"
"$go" build -o "$out/" tool
cd "$out/src"
for file in ipam/host-local/main.go ipam/static/main.go main/loopback/loopback.go main/ptp/ptp.go main/tap/tap.go; do
	cp "$here/shim/shim.go" "plugins/$file"
done
for suite in plugins/ipam/host-local plugins/ipam/static plugins/main/loopback plugins/main/ptp plugins/main/tap plugins/meta/portmap integration; do
	"$go" test -vet off -c -o "$out/$(basename "$suite").test" "./$suite"
done
# What loopback's, portmap's and the integration suite build when they run is in Go's build cache then.
"$go" build -o "$out/" ./plugins/main/loopback ./pkg/testutils/echo/client ./pkg/testutils/echo/server
