package view

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/netops"
)

// Manager returns the command by which the program that manages an interface gives it its addresses and routes again, or "". netplan
// leaves that to one of these programs. Of two that manage it, it is the last one here.
func (h *Host) Manager(link string) (string, error) {
	return ask(&h.Namespace, "manager: "+link, func() (string, error) {
		links, err := h.Links()
		i := slices.IndexFunc(links, func(l netops.LinkInfo) bool { return l.Name == link })
		if i < 0 {
			return "", err
		}
		number := strconv.Itoa(links[i].Index)
		command := ""
		for _, m := range []struct {
			dir, file, command string
			manages            func(line string) bool
		}{
			{"/run/network", "ifstate", "ifdown --force " + link + "; ifup " + link, func(line string) bool {
				name, _, _ := strings.Cut(line, "=")
				return name == link
			}},
			{"/run/systemd/netif/links", number, "networkctl reconfigure " + link, func(line string) bool {
				return slices.Contains([]string{"ADMIN_STATE=configured", "ADMIN_STATE=configuring", "ADMIN_STATE=failed"}, line)
			}},
			{"/run/NetworkManager/devices", number, "nmcli device reapply " + link, func(line string) bool { return line == "managed=true" }},
		} {
			if slices.ContainsFunc(lines(m.dir, m.file), m.manages) {
				command = m.command
			}
		}
		return command, nil
	})
}

// lines returns those of a file that only root can write, or none: the program does not run.
func lines(dir, file string) []string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	const most = 1 << 16
	text, err := smallfile.ReadTrusted(root, file, most)
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\n")
}
