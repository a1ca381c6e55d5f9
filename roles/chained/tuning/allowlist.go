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
	// allowlistFile holds the settings that the node's administrator allows.
	allowlistFile = "/etc/cni/tuning/allowlist.conf"
	// maxAllowlist bounds what is read of it.
	maxAllowlist = 1 << 20
)

// readAllowlist reads the allowlist; found is false without the file, which
// allows all.
func readAllowlist(file string) (text string, found bool, err error) {
	b, err := smallfile.Read(file, maxAllowlist)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read the allowlist of settings: %w", err)
	}
	return string(b), true, nil
}

// checkAllowed reports the settings that no line of the allowlist matches, by
// the names that the configuration has. A line is a regular expression that is
// not anchored.
func (c *Conf) checkAllowed(allowlist string) error {
	var f roles.Faults
	left := map[string][]Setting{"sysctl": c.Sysctl, "args.cni.sysctl": c.Args.CNI.Sysctl}
	for n, line := range strings.Split(allowlist, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		re, err := regexp.Compile(line)
		if err != nil {
			return fmt.Errorf("%s, line %d: %w", allowlistFile, n+1, err)
		}
		for object, all := range left {
			var rest []Setting
			for _, one := range all {
				if !re.MatchString(one.Name) {
					rest = append(rest, one)
				}
			}
			left[object] = rest
		}
	}
	for _, object := range []string{"sysctl", "args.cni.sysctl"} {
		for _, one := range left[object] {
			f.Addf(one.at(object), "is not allowed by %s: ask the node's administrator for a line that matches it", allowlistFile)
		}
	}
	return f.Err()
}
