package main

import (
	"fmt"
	"strings"
)

// draw is the picture: pods, their interfaces, the bridge.
//
//	pod-a                        pod-b
//	eth0 10.22.0.2/16            eth0 10.22.0.3/16
//	  │                            │
//	veth0a1b2c3d4e5              veth1a2b3c4d5e6
//	  │                            │
//	──┴────────────────────────────┴──────────
//	cni0 10.22.0.1
func draw(pods []*pod) string {
	const width = 28
	var rows [5]strings.Builder
	for _, p := range pods {
		host, inside := "?", "?"
		for i, f := range p.result.Interfaces {
			switch {
			case f.Sandbox != "":
				inside = f.Name
			case i > 0:
				host = f.Name
			}
		}
		for i, s := range []string{p.name, inside + " " + p.result.IPs[0].Address, "  │", host, "  │"} {
			fmt.Fprintf(&rows[i], "%-*s", width, s)
		}
	}
	var b strings.Builder
	for i := range rows {
		fmt.Fprintf(&b, "  %s\n", strings.TrimRight(rows[i].String(), " "))
	}
	b.WriteString("  ──")
	for i := range pods {
		if i > 0 {
			b.WriteString(strings.Repeat("─", width-1))
		}
		b.WriteString("┴")
	}
	b.WriteString(strings.Repeat("─", 12) + "\n")
	first := pods[0].result
	fmt.Fprintf(&b, "  %s %s\n", first.Interfaces[0].Name, first.IPs[0].Gateway)
	return b.String()
}
