package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cnibox/cnibox/netops"
)

// iptablesTimeout bounds one run of iptables, which waits while another process holds
// the xtables lock.
const iptablesTimeout = 30 * time.Second

// IPTables runs a program of iptables-legacy with input as its standard input and
// returns its standard output (see netops.IPTables). It also looks in the sbin
// directories, because runtimes may call plugins with a PATH that lacks them.
func IPTables(ctx context.Context, program string, args []string, input string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, iptablesTimeout)
	defer cancel()
	file, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if err != nil {
			file, err = exec.LookPath(filepath.Join(dir, program))
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w: not installed: install the package iptables", program, netops.ErrNotSupported)
	}
	out, errorText := &boundedBuffer{left: maxOutput}, &boundedBuffer{left: maxErrorText}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), out, errorText
	cmd.WaitDelay = stopTimeout
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(errorText.buf.Bytes()))
	}
	if out.cut {
		return "", errors.New(program + ": the output is too long")
	}
	return out.buf.String(), nil
}
