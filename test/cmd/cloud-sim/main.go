// Command cloud-sim simulates a cloud's metadata service for tests and trials; see docs/lab.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/test/cloudsim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := cloudsim.Command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case err == nil:
	case errors.Is(err, flag.ErrHelp):
		fmt.Println(err) // the text of -help
	default:
		fmt.Fprintln(os.Stderr, "cloud-sim:", err)
		if errors.Is(err, roles.ErrUsage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}
