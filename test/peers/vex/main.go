// Command vex prints the status and the justification of a product in an OpenVEX document: vex FILE PRODUCT VULNERABILITY.
package main

import (
	"fmt"
	"os"

	"github.com/openvex/go-vex/pkg/vex"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: vex FILE PRODUCT VULNERABILITY")
		os.Exit(2)
	}
	doc, err := vex.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "vex:", err)
		os.Exit(1)
	}
	for _, s := range doc.Matches(os.Args[3], os.Args[2], nil) {
		if err := s.Validate(); err != nil {
			fmt.Fprintln(os.Stderr, "vex:", err)
			os.Exit(1)
		}
		fmt.Println(s.Status, s.Justification)
	}
}
