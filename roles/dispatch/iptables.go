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

// iptablesTimeout bounds one run of iptables, whose lock others may hold.
const iptablesTimeout = 30 * time.Second

// IPTables runs one of iptables-legacy's programs (see netops.IPTables). Runtimes
// may call plugins with a PATH without the directories of administrators.
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
		return "", fmt.Errorf("%s: %w: it is not installed (Debian's package is iptables)", program, netops.ErrNotSupported)
	}
	out, complaint := &bounded{left: maxOutput}, &bounded{left: maxComplaint}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), out, complaint
	cmd.WaitDelay = stopTimeout
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(complaint.buf.Bytes()))
	}
	if out.cut {
		return "", errors.New(program + ": its listing is too long")
	}
	return out.buf.String(), nil
}
