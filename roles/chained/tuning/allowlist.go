package tuning

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/cnibox/cnibox/internal/smallfile"
	"github.com/cnibox/cnibox/roles"
)

const (
	// allowlistFile lists the sysctls that the node's administrator allows.
	allowlistFile = "/etc/cni/tuning/allowlist.conf"
	// maxAllowlist is the maximum size of the allowlist in bytes.
	maxAllowlist = 1 << 20
)

// readAllowlist reads the allowlist. found is false if the file does not exist,
// which means that every sysctl is allowed.
func readAllowlist(file string) (text string, found bool, err error) {
	b, err := smallfile.Read(file, maxAllowlist)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read the allowlist of sysctls: %w", err)
	}
	return string(b), true, nil
}

// checkAllowed reports the sysctls that no line of the allowlist matches. It
// matches the names as they are in the configuration. A line is a regular
// expression without implicit anchors.
func (c *Conf) checkAllowed(allowlist string) error {
	var f roles.Faults
	unmatched := map[string][]Setting{"sysctl": c.Sysctl, "args.cni.sysctl": c.Args.CNI.Sysctl}
	for n, line := range strings.Split(allowlist, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", allowlistFile, n+1, err)
		}
		for object, all := range unmatched {
			var remaining []Setting
			for _, setting := range all {
				if !re.MatchString(setting.Name) {
					remaining = append(remaining, setting)
				}
			}
			unmatched[object] = remaining
		}
	}
	for _, object := range []string{"sysctl", "args.cni.sysctl"} {
		for _, setting := range unmatched[object] {
			f.Addf(setting.jsonPath(object), "is not allowed by %s: ask the node's administrator for a line that matches it", allowlistFile)
		}
	}
	return f.Err()
}
