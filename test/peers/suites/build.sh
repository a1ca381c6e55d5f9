#!/bin/sh
# Builds the test suites of the reference plugins into the directory OUT, from a copy of their Go module, which MODFILE requires:
# build.sh OUT MODFILE. In the suites that call the functions of a plugin, shim/shim.go stands for that plugin. It executes the plugin of CNIBOX_PLUGIN.
set -eu
out=$1 modfile=$2
here=$(cd "$(dirname "$0")" && pwd)
go=${GO:-go}
cd "$here"
"$go" mod download -modfile "$modfile"
module=$("$go" list -modfile "$modfile" -m -f '{{.Dir}}' github.com/containernetworking/plugins)
rm -rf "$out"
mkdir -p "$out"
cp -R "$module" "$out/src"
chmod -R u+w "$out/src"
"$go" build -modfile "$modfile" -o "$out/" tool
cd "$out/src"
for file in ipam/host-local/main.go ipam/static/main.go main/loopback/loopback.go main/ptp/ptp.go main/tap/tap.go; do
	cp "$here/shim/shim.go" "plugins/$file"
done
# These suites also use what else is in the plugin's file.
for file in ipam/dhcp/main.go main/bridge/bridge.go main/dummy/dummy.go main/host-device/host-device.go main/ipvlan/ipvlan.go main/macvlan/macvlan.go \
	main/vlan/vlan.go meta/bandwidth/main.go meta/firewall/firewall.go meta/sbr/main.go meta/tuning/tuning.go meta/vrf/main.go; do
	sed -i 's/^func \(main\|cmd[A-Z][A-Za-z]*\)(/func reference_\1(/' "plugins/$file"
	cp "$here/shim/shim.go" "plugins/${file%/*}/"
done
# Dummy's suite builds the plugin, which it does not use. The virtual machine has no Go.
sed -i '/^var _ = BeforeSuite/,/^})/d' plugins/main/dummy/dummy_suite_test.go
for suite in ipam/dhcp ipam/host-local ipam/static main/bridge main/dummy main/host-device main/ipvlan main/loopback main/macvlan main/ptp main/tap \
	main/vlan meta/bandwidth meta/firewall meta/portmap meta/sbr meta/tuning meta/vrf; do
	"$go" test -vet off -ldflags '-s -w' -c -o "$out/${suite#*/}.test" "./plugins/$suite"
done
"$go" test -vet off -ldflags '-s -w' -c -o "$out/integration.test" ./integration
# What loopback's, portmap's and the integration suite build when they run is in Go's build cache then.
"$go" build -o "$out/" ./plugins/main/loopback ./pkg/testutils/echo/client ./pkg/testutils/echo/server
