package multi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/roles/meta/multi/nad"
	"github.com/cnibox/cnibox/test/await"
)

// kubelet is the directory of a kubelet's files, and of the answers of its pod-resources API.
type kubelet struct {
	*world
	answers string
}

// newKubelet hides the machine's kubelet.
func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	if err := unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount("/var/lib", unix.MNT_DETACH) })
	k := &kubelet{newWorld(t), t.TempDir()}
	k.conf["inOrder"] = true
	for _, file := range []string{nad.KubeletSocket, nad.CheckpointFile} {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

// serve starts kubelet's server of the API.
func (k *kubelet) serve() {
	k.t.Helper()
	program := filepath.Join(k.t.TempDir(), "podresources")
	build := exec.Command("go", "build", "-o", program, "./podresources")
	build.Dir = "../../../test/peers/cri"
	if out, err := build.CombinedOutput(); err != nil {
		k.t.Fatalf("build test/peers/cri/podresources: %v\n%s", err, out)
	}
	server := exec.Command(program, nad.KubeletSocket, k.answers)
	input, err := server.StdinPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() {
		_ = input.Close()
		_ = server.Wait()
	})
	await.Until(k.t, func() bool {
		_, err := os.Stat(nad.KubeletSocket)
		return err == nil
	}, func() string { return "no socket" })
}

// answer sets what the API answers for the pod.
func (k *kubelet) answer(json string) {
	k.t.Helper()
	if err := os.WriteFile(filepath.Join(k.answers, "web.pod.json"), []byte(json), 0o600); err != nil {
		k.t.Fatal(err)
	}
}

// claim is a claim in an answer. Each device is "NAME" or "NAME CDI…".
func claim(name, driver string, devices ...string) string {
	var list []string
	var cdi []string // kubelet repeats those of earlier devices
	for _, d := range devices {
		f := strings.Fields(d)
		for _, c := range f[1:] {
			cdi = append(cdi, fmt.Sprintf(`{"name":%q}`, c))
		}
		list = append(list, fmt.Sprintf(`{"driver_name":%q,"pool_name":"node","device_name":%q,"cdi_devices":[%s]}`, driver, f[0], strings.Join(cdi, ",")))
	}
	return fmt.Sprintf(`{"claim_name":%q,"claim_namespace":"web","claim_resources":[%s]}`, name, strings.Join(list, ","))
}

// container is a container in an answer.
func container(claims ...string) string {
	return `{"name":"c","cpu_ids":[1,2],"devices":[{"resource_name":"x/y","device_ids":["d"],"topology":{"nodes":[{"ID":1}]}}],"dynamic_resources":[` + strings.Join(claims, ",") + `]}`
}

func answer(containers ...string) string {
	return `{"pod_resources":{"name":"pod","namespace":"web","containers":[` + strings.Join(containers, ",") + `]}}`
}

// definition is a network whose plugins get a device of the resource.
func (k *kubelet) definition(resource string) {
	k.t.Helper()
	k.network("vf", fmt.Sprintf(`{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"name":"vf","namespace":"web","annotations":{"k8s.v1.cni.cncf.io/resourceName":%q}},
		"spec":{"config":"{\"cniVersion\":\"1.0.0\",\"name\":\"vf\",\"type\":\"thirdparty\"}"}}`, resource))
}

// uses checks the devices that the plugins of the requested networks get.
func (k *kubelet) uses(want ...string) {
	k.t.Helper()
	k.OK(k.call("ADD"))
	_, confs := k.calls()
	for i, c := range confs {
		if i >= len(want) || !strings.Contains(c, `"deviceID":"`+want[i]+`"`) {
			k.t.Errorf("plugin %d has %s, want %s", i, c, want)
		}
	}
	if len(confs) != len(want) {
		k.t.Errorf("%d plugins, want %s", len(confs), want)
	}
	k.OK(k.call("DEL"))
	_ = os.Remove(k.file("calls"))
}

// TestClaims: kubelet's pod-resources API names the devices of a pod's ResourceClaims.
func TestClaims(t *testing.T) {
	k := newKubelet(t)
	// fails returns the error of the pod's ADD.
	fails := func(code int) string {
		t.Helper()
		return k.Fail(k.call("ADD"), code).Stdout
	}
	contains := func(have string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(strings.ReplaceAll(have, `\"`, `"`), w) {
				t.Errorf("have %s\nwant %s", have, w)
			}
		}
	}
	k.wish("vf")
	k.definition("sriov")
	contains(fails(7), `network "web/vf": the pod has 0 devices of resource "sriov" and requests one more: `,
		`ResourceClaims of pod web/pod: kubelet: dial unix `+nad.KubeletSocket+`: connect: no such file or directory: `, "use Kubernetes 1.34 or later")
	k.serve()
	contains(fails(7), `ResourceClaims of pod web/pod: kubelet: code 2: "pod pod in namespace web not found"`)
	k.answer(`{"code":2,"message":"PodResources API Get method disabled"}`)
	contains(fails(7), `Get method disabled`, "before Kubernetes 1.34, enable kubelet's feature gates KubeletPodResourcesGet and KubeletPodResourcesDynamicResources")
	k.answer(`{"code":12,"message":"unknown service v1.PodResourcesLister"}`)
	contains(fails(7), "enable kubelet's feature gates")
	k.answer(`{"code":8,"message":"rejected by rate limit"}`)
	contains(fails(11), `rejected by rate limit`)
	k.answer(answer(container()))
	contains(fails(7), "pod web/pod: kubelet has no ResourceClaims: name the claim in resources.claims of a container", "before Kubernetes 1.34, enable kubelet's feature gates")
	k.answer(answer(container(claim("gpu-x", "gpu.example.com", "gpu-0 k8s.gpu/gpu=uuid-7"), claim("empty", ""))))
	contains(fails(7), `pod web/pod: claim "gpu-x" has device "gpu-0" of driver "gpu.example.com", claim "empty" has none: name a claim or driver in resourceName`,
		`or set "kubeconfig" and let the driver publish k8s.cni.cncf.io/resourceName and k8s.cni.cncf.io/deviceID`)
	k.definition("gpu-x")
	contains(fails(7), `claim "gpu-x" has device "gpu-0"`)

	k.definition("sriov")
	vfs := claim("sriov", "sriov.example.com", "0000-03-02-2", "0000-03-02-1")
	k.answer(answer(container(claim("gpu-x", "gpu.example.com", "gpu-0"), vfs), container(vfs)))
	k.uses("0000:03:02.1")
	k.wish("vf,vf")
	k.uses("0000:03:02.1", "0000:03:02.2")
	k.wish("vf,vf,vf")
	contains(fails(7), `the pod has 2 devices of resource "sriov" and requests one more`)
	_ = os.Remove(k.file("calls"))

	k.definition("sriov.example.com")
	k.answer(answer(container(claim("pod-a-7xk2p", "sriov.example.com", "a v.example.com/vf=0000:03:02.3"), claim("pod-b-w8jq4", "sriov.example.com", "b v.example.com/vf=0000:03:02.5", "c v.example.com/vf=10000:03:02.4"))))
	k.uses("0000:03:02.3", "0000:03:02.5", "10000:03:02.4")

	k.wish("vf,vf")
	k.definition("x/y") // a device plugin's and a claim's
	k.answer(answer(container(claim("x/y", "d", "pci-0000-03-02-7"))))
	if err := os.WriteFile(nad.CheckpointFile, []byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ResourceName":"x/y","DeviceIDs":["0000:04:00.1"]}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	k.uses("0000:04:00.1", "0000:03:02.7")
}
