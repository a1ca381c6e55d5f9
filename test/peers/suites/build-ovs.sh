#!/bin/sh
# Builds the test suites of ovs-cni into the directory OUT, from a copy of its Go module, which ../ovs-cni requires: build-ovs.sh OUT. In them
# shim/shim.go stands for the plugin, which the suites of the mirror plugins call, too.
set -eu
out=$1
here=$(cd "$(dirname "$0")" && pwd)
go=${GO:-go}
cd "$here/../ovs-cni"
"$go" mod download
module=$("$go" list -m -f '{{.Dir}}' github.com/k8snetworkplumbingwg/ovs-cni)
rm -rf "$out"
mkdir -p "$out"
cp -R "$module" "$out/src"
chmod -R u+w "$out/src"
cd "$out/src"
# The module has only a list of its vendored packages.
rm -r vendor
# These suites also use what else is in the plugin's file.
sed -i 's/^func \(Cmd[A-Z][A-Za-z]*\)(/func reference_\1(/' pkg/plugin/plugin.go
# Each suite has one ID for all its containers. It must be a container's own, so the name of the namespace is added.
stand=$here/shim/shim.go
sed 's/^package main$/package plugin/; s/^func cmd/func Cmd/; s/args\.ContainerID/&+filepath.Base(args.Netns)/' "$stand" >pkg/plugin/shim.go
for suite in plugin mirror-producer mirror-consumer; do
	"$go" test -vet off -ldflags '-s -w' -c -o "$out/ovs-$suite.test" "./pkg/$suite"
done
