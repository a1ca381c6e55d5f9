// Command debian unpacks packages of a release of Debian for this processor into a directory, unless the directory exists.
//
//	go run ./test/cmd/debian DIR RELEASE PACKAGE…
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/cnibox/cnibox/test/internal/debian"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: debian DIR RELEASE PACKAGE…")
		os.Exit(2)
	}
	if err := debian.UnpackOnce(context.Background(), os.Args[1], os.Args[2], runtime.GOARCH, os.Args[3:]...); err != nil {
		fmt.Fprintln(os.Stderr, "debian:", err)
		os.Exit(1)
	}
}
