package netopstest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// NeedDevices returns the names of two free hardware devices, or skips the test.
// Unlike a virtual device, a hardware device survives the deletion of its
// network namespace. See InitialMain.
func NeedDevices(t testing.TB) [2]string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, l := range links {
		if _, err := os.Stat(filepath.Join("/sys/class/net", l.Attrs().Name, "device")); err == nil {
			found = append(found, l.Attrs().Name)
		}
	}
	slices.Sort(found)
	switch {
	case len(found) >= 2:
		return [2]string(found[:2])
	case os.Getenv(vmEnv) == "":
		t.Skip("this needs real devices; make test-vm runs it")
	}
	t.Fatalf("devices on the host: %q, want two", found)
	return [2]string{}
}

// Function is a virtual function of a network card.
type Function struct {
	// Device is its PCI address, Number its number at the card, and Link its interface.
	Device string
	Number int
	Link   string
}

// NeedFunctions returns the interface of a network card and its virtual functions, or skips the test. See InitialMain.
func NeedFunctions(t testing.TB) (card string, functions []Function) {
	t.Helper()
	cards, err := filepath.Glob("/sys/class/net/*/device/virtfn0")
	if err != nil {
		t.Fatal(err)
	}
	if len(cards) == 0 {
		if os.Getenv(vmEnv) == "" {
			t.Skip("this needs a network card with virtual functions; make test-vm runs it")
		}
		t.Fatal("no network card has virtual functions")
	}
	device := filepath.Dir(cards[0])
	for n := 0; ; n++ {
		dir := filepath.Join(device, fmt.Sprintf("virtfn%d", n))
		to, err := os.Readlink(dir)
		if err != nil {
			return filepath.Base(filepath.Dir(device)), functions
		}
		links, err := os.ReadDir(filepath.Join(dir, "net"))
		if err != nil || len(links) != 1 {
			t.Fatalf("interfaces of %s: %d, %v", dir, len(links), err)
		}
		functions = append(functions, Function{filepath.Base(to), n, links[0].Name()})
	}
}
