package tuning_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const backupFile = "/run/tuning/c1_eth0.json"

// TestInherit: DEL of an interface that the reference plugin tuned restores it
// from the plugin's file and removes the file.
func TestInherit(t *testing.T) {
	for _, gone := range []bool{false, true} {
		l := newList(t, bridge, withoutMTU6)
		l.reference()
		first := l.run(l.call("ADD", 0, ""))
		before := l.tuned()
		result := l.run(l.call("ADD", 1, first))
		if _, err := os.Stat(backupFile); err != nil {
			t.Fatal(err)
		}
		del := l.call("DEL", 1, result)
		if gone {
			del.Netns = ""
		}
		l.OK(del)
		if _, err := os.Stat(backupFile); !os.IsNotExist(err) {
			t.Errorf("the file still exists: %v", err)
		}
		if !gone {
			// The file does not contain sysctls.
			want, _, _ := strings.Cut(before, "\n")
			if have, _, _ := strings.Cut(l.tuned(), "\n"); have != want {
				t.Errorf("after DEL: %s, want %s", have, want)
			}
		}
		l.OK(del)
		l.run(l.call("DEL", 0, result))
	}
}

// TestHostileBackup uses files that the reference plugin does not write. Values
// that no interface can have are ignored, a path that is not a regular file is
// left, and DEL succeeds.
func TestHostileBackup(t *testing.T) {
	l := newList(t, bridge, withoutMTU6)
	l.run(l.call("ADD", 0, ""))
	before := l.tuned()
	if err := os.MkdirAll("/run/tuning", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		changes    bool
	}{
		{name: "empty"},
		{name: "no JSON", text: "{"},
		{name: "null", text: "null"},
		{name: "another type", text: `{"mtu":"1300"}`},
		{name: "out of range", text: `{"mac":"ff:ff:ff:ff:ff:ff","mtu":-5,"txQLen":-1}`},
		{name: "too large", text: `{"mac":"nonsense","mtu":99999999,"txQLen":99999999999}`},
		{name: "refused by the kernel", text: `{"mtu":65535,"mac":"00:00:00:00:00:00"}`, changes: true},
		{name: "long", text: `{"mtu":1300` + strings.Repeat(" ", 1<<17) + `}`},
		{name: "good", text: `{"mtu":1300,"promisc":true}`, changes: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := os.WriteFile(backupFile, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			l.OK(l.call("DEL", 1, ""))
			if _, err := os.Stat(backupFile); !os.IsNotExist(err) {
				t.Errorf("the file still exists: %v", err)
			}
			if have := l.tuned(); (have != before) != c.changes {
				t.Errorf("tuned to %s", have)
			}
			before = l.tuned()
		})
	}
	for name, make := range map[string]func() error{
		"link":      func() error { return os.Symlink("/etc/passwd", backupFile) },
		"pipe":      func() error { return unix.Mkfifo(backupFile, 0o600) },
		"directory": func() error { return os.Mkdir(backupFile, 0o700) },
	} {
		if err := make(); err != nil {
			t.Fatal(err)
		}
		l.OK(l.call("DEL", 1, ""))
		if _, err := os.Lstat(backupFile); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Remove(backupFile); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"none/such", `a\u0000b`, strings.Repeat("d", 5000)} {
		c := l.call("DEL", 1, "")
		c.Conf = strings.Replace(c.Conf, "/run/tuning", dir, 1)
		l.OK(c)
	}
}
