// Command terminal runs a session with cnibox on a host of its own and draws what it printed as the README's picture:
//
//	go run ./test/cmd/terminal >docs/terminal.svg
//
// The commands are real, and each has a pseudo-terminal for its output, so the colours and tables are those of a terminal.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cnibox/cnibox/test/internal/stage"
)

const (
	conflist = "/etc/cni/net.d/10-pods.conflist"
	network  = `{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`
)

func main() {
	stage.Main(func(s *stage.Stage) error {
		if err := prepare(s); err != nil {
			return fmt.Errorf("prepare a host: %w", err)
		}
		var shown []string
		for _, c := range session() {
			out, err := onTerminal(s, c)
			if err != nil {
				return err
			}
			shown = append(shown, "\x1b[1m# "+c.line+"\x1b[0m")
			if out != "" {
				shown = append(append(shown, strings.Split(strings.Trim(out, "\n"), "\n")...), "")
			}
		}
		_, err := os.Stdout.WriteString(draw(shown[:len(shown)-1]))
		return err
	})
}

// command is a line of the session, and the exit code that it must have.
type command struct {
	line string
	exit int
}

// session attaches two pods, breaks one, finds out what is wrong and repairs it.
func session() []command {
	return []command{
		{line: "cnibox install --quiet --conflist 10-pods.conflist"},
		{line: "cnibox add " + conflist + " web /run/netns/web >result.json"},
		{line: "cnibox add " + conflist + " db /run/netns/db >result.json"},
		{line: "cnibox path web db"},
		{line: "ip netns exec web ip route delete default"},
		{line: "cnibox path web 192.0.2.1", exit: 3},
		{line: "cnibox doctor", exit: 3},
		{line: "cnibox repair --yes"},
		{line: "cnibox doctor"},
	}
}

// prepare hides the machine's configuration and makes a pod's namespace, the network's file and a PATH without container runtimes.
func prepare(s *stage.Stage) error {
	for _, dir := range []string{"/etc", "/opt", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/bin", "/run/session"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		return err
	}
	for _, pod := range []string{"web", "db"} {
		if _, err := s.Output("", ip, "netns", "add", pod); err != nil {
			return err
		}
	}
	return errors.Join(
		os.Symlink(s.Cnibox, "/run/bin/cnibox"), os.Symlink(ip, "/run/bin/ip"),
		os.WriteFile(filepath.Join("/run/session", filepath.Base(conflist)), []byte(network), 0o644),
		os.Setenv("PATH", "/run/bin"),
	)
}

// onTerminal runs a command line and returns what it printed: on a pseudo-terminal, and what is of interest of its errors.
func onTerminal(s *stage.Stage, c command) (string, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return "", fmt.Errorf("unlock terminal: %w", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if errno != 0 {
		return "", fmt.Errorf("open terminal: %w", errno)
	}
	slave := os.NewFile(fd, "terminal")
	cmd := exec.CommandContext(s.Ctx, "/bin/sh", "-c", c.line)
	var errs bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/run/session", slave, &errs
	if err := errors.Join(cmd.Start(), slave.Close()); err != nil {
		return "", err
	}
	out, err := io.ReadAll(master)
	if err != nil && !errors.Is(err, unix.EIO) { // EIO: nobody has the terminal any more
		return "", err
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != c.exit {
		return "", fmt.Errorf("%s: %w, want exit code %d\n%s%s", c.line, err, c.exit, out, errs.String())
	}
	return strings.ReplaceAll(string(out), "\r", "") + errs.String(), nil
}
