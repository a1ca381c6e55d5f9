package process

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/await"
)

// TestUnitExposure has systemd count what the units leave to their services, from 0 to 10.
func TestUnitExposure(t *testing.T) {
	for unit, most := range map[string]float64{"cni-dhcp.service": 4.0, "cnibox-agent.service": 5.0} {
		path, err := filepath.Abs("../../../examples/systemd/" + unit)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", path).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		level := regexp.MustCompile(`Overall exposure level for \S+: (\d+\.\d)`).FindSubmatch(out)
		if level == nil {
			t.Fatalf("%s: no level in\n%s", unit, out)
		}
		if have, err := strconv.ParseFloat(string(level[1]), 64); err != nil || have > most {
			t.Errorf("%s is exposed to %s of 10, %v, want at most %.1f:\n%s", unit, level[1], err, most, out)
		}
	}
}

// TestUnits runs systemd with the units of examples/systemd in namespaces of its own, and the daemons do their work in the sandboxes
// that it makes for them.
func TestUnits(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cnibox := filepath.Join(binDir, "cnibox")
	for _, unit := range []string{"cni-dhcp.service", "cni-dhcp.socket", "cnibox-agent.service"} {
		text, err := os.ReadFile("../../../examples/systemd/" + unit)
		if err != nil {
			t.Fatal(err)
		}
		write("units/"+unit, strings.NewReplacer("/usr/bin/cnibox", cnibox, "/opt/cni/bin/dhcp", filepath.Join(binDir, "dhcp")).Replace(string(text)))
	}
	script, err := filepath.Abs("testdata/units.sh")
	if err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(dir, "output")
	daemons := write("daemons", "")
	write("units/cni-dhcp.service.d/test.conf", "[Service]\nStandardError=append:"+daemons+"\n")
	write("units/cnibox-agent.service.d/test.conf", "[Service]\nStandardError=append:"+daemons+
		"\nEnvironment=FLANNELD_CLUSTER_DIR=/run/cluster FLANNELD_NODE_NAME=self FLANNELD_IFACE=eth0 FLANNELD_IP_MASQ=true\n")
	write("units/test.service", fmt.Sprintf(`[Unit]
DefaultDependencies=no
Wants=cni-dhcp.service
After=cni-dhcp.service
[Service]
Environment=CNI_PATH=%[1]s
ExecStart=/bin/sh -c '/bin/sh %[2]s %[3]s; echo "status $$?"'
StandardOutput=file:%[4]s
StandardError=inherit
`, binDir, script, cnibox, output))
	write("test/dhcp.conflist", `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "bridge", "bridge": "br0", "ipam": {"type": "dhcp"}}]}`)
	write("test/peer.json", `{"name": "peer", "podCIDRs": ["10.244.9.0/24"], "publicIP": "192.0.2.9", "backendType": "vxlan", "backendData": {"VNI": 1, "VtepMAC": "02:00:00:00:00:09"}}`)
	write("cluster/config.json", `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`)
	if err := os.Mkdir(filepath.Join(dir, "cluster/nodes"), 0o755); err != nil {
		t.Fatal(err)
	}
	// systemd and its tools treat their root as a machine that boots: they empty /tmp and set kernel parameters. So it gets a root
	// that is read-only except this test's directory, and no unit but those that are written here.
	for _, target := range []string{"sysinit", "basic", "sockets", "shutdown", "network", "network-online"} {
		write("units/"+target+".target", "[Unit]\nDefaultDependencies=no\n")
	}
	begin := write("begin.sh", fmt.Sprintf(`set -eu
dir=%s
root=$dir/root
mkdir $root
mount --bind / $root
mount -o remount,bind,ro $root
mount --bind $dir $root$dir
mount --bind /dev $root/dev
mount -o remount,bind,ro $root/dev
mount -t proc proc $root/proc
for d in kernel fs vm; do
	mount --bind $root/proc/sys/$d $root/proc/sys/$d
	mount -o remount,bind,ro $root/proc/sys/$d
done
mount -t sysfs sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
for d in run var etc/default; do mount -t tmpfs tmpfs $root/$d; done
mkdir -p $root/run/old $root/var/lib $root/var/log
cp -r $dir/units $dir/test $dir/cluster $root/run
cd $root
pivot_root . run/old
umount -l /run/old
mount --make-rshared /
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 192.0.2.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=test SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/run SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run \
	/lib/systemd/systemd --system --unit=test.service --log-target=console --show-status=no
`, dir))
	log := runInit(t, begin, output)
	text, err := os.ReadFile(output)
	if err != nil || !strings.HasSuffix(string(text), "status 0\n") {
		t.Errorf("%v\n%s\nsystemd:\n%s", err, text, log)
	}
	said, err := os.ReadFile(daemons)
	if err != nil || len(said) == 0 || bytes.Contains(said, []byte("not permitted")) || bytes.Contains(said, []byte("permission denied")) {
		t.Errorf("the daemons' errors: %v\n%s", err, said)
	}
}

// runInit runs a script that becomes systemd, in namespaces and a cgroup of its own, until the output ends with a status.
func runInit(t *testing.T, script, output string) string {
	t.Helper()
	root := t.TempDir()
	if err := unix.Mount("cgroup2", root, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(root, unix.MNT_DETACH) }()
	group := filepath.Join(root, fmt.Sprintf("cnibox-units-%d", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeGroup(t, group)
	f, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command("unshare", "--pid", "--mount", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "--mount-proc", "sh", script)
	log, err := os.Create(filepath.Join(filepath.Dir(script), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd()), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	read := func(path string) string {
		text, _ := os.ReadFile(path)
		return string(text)
	}
	await.Until(t, func() bool { return strings.Contains(read(output), "\nstatus ") }, func() string {
		return fmt.Sprintf("the script does not end:\n%s\nsystemd:\n%s", read(output), read(log.Name()))
	})
	return read(log.Name())
}

// removeGroup removes a cgroup with those in it when their processes have ended.
func removeGroup(t *testing.T, group string) {
	await.Until(t, func() bool {
		var all []string
		_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, path := range slices.Backward(all) {
			_ = unix.Rmdir(path)
		}
		return unix.Access(group, unix.F_OK) == unix.ENOENT
	}, func() string { return "cgroup " + group + " has processes" })
}
