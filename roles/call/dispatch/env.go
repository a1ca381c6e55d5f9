package dispatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cnibox/cnibox/roles"
)

// The environment variables of a call (CNI spec 1.1.0, section 2), and CNIBOX_LOG.
const (
	envCommand     = "CNI_COMMAND"
	envContainerID = "CNI_CONTAINERID"
	envNetns       = "CNI_NETNS"
	envIfName      = "CNI_IFNAME"
	envArgs        = "CNI_ARGS"
	envPath        = "CNI_PATH"
	envOverride    = "CNI_NETNS_OVERRIDE"
	envLog         = "CNIBOX_LOG"
)

// ownNetns is the network namespace of this process.
const ownNetns = "/proc/self/ns/net"

// required returns the variables that a verb needs. ok is false if v is not a verb.
// As in the spec, only GC requires CNI_PATH: another verb without it fails, with the same
// code, when it looks for a delegate.
func required(v roles.Verb) (names []string, ok bool) {
	switch v {
	case roles.Add, roles.Check:
		return []string{envContainerID, envNetns, envIfName}, true
	case roles.Del:
		return []string{envContainerID, envIfName}, true
	case roles.GC:
		return []string{envPath}, true
	case roles.Status, roles.Version:
		return nil, true
	}
	return nil, false
}

// newRequest makes a request of the environment. One error names all missing
// variables, and another names all invalid ones. The role is nil if only the
// configuration names it.
func newRequest(verb roles.Verb, env []string, role *roles.Role, table roles.Table) (*roles.Request, error) {
	names, ok := required(verb)
	if !ok {
		return nil, fmt.Errorf("%w: CNI_COMMAND: %q is not an operation of CNI", roles.ErrEnv, string(verb))
	}
	get := func(key string) string { return getenv(env, key) }
	var missing []string
	for _, n := range names {
		if get(n) == "" {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: required env variables [%s] missing", roles.ErrEnv, strings.Join(missing, ","))
	}
	req := &roles.Request{
		Verb: verb, ContainerID: get(envContainerID), Netns: get(envNetns), IfName: get(envIfName),
		Env: slices.Clone(env),
	}
	// An empty part of CNI_PATH would mean the working directory.
	req.Path = slices.DeleteFunc(filepath.SplitList(get(envPath)), func(dir string) bool { return dir == "" })
	if verb == roles.Version {
		return req, nil
	}
	var faults []error
	if slices.Contains(names, envContainerID) {
		faults = append(faults, checkContainerID(req.ContainerID), checkIfName(req.IfName))
	}
	req.Args, _ = roles.ParseArgs(get(envArgs)) // checkArgs returns the error
	return req, errors.Join(append(faults, checkArgs(req, role, table))...)
}

// checkArgs returns an error for ADD and CHECK if a part of CNI_ARGS is not KEY=VALUE, or
// if no role knows one of the keys and IgnoreUnknown is not set. The other verbs read no
// argument that they need: a container can be removed whatever its arguments are. A role that
// reads no argument accepts all. The role can be nil.
func checkArgs(req *roles.Request, role *roles.Role, table roles.Table) error {
	if req.Verb != roles.Add && req.Verb != roles.Check || role != nil && len(role.Args) == 0 {
		return nil
	}
	args := req.Args
	if err := args.Check(); err != nil {
		return fmt.Errorf("%w: %w", roles.ErrEnv, err)
	}
	// The methods of Request read these two.
	known := []string{"K8S_POD_NAMESPACE", "K8S_POD_NAME"}
	if len(args.Unknown(known)) == 0 {
		return nil // without making the other roles
	}
	for _, r := range table.Roles() {
		known = append(known, r.Args...)
	}
	if unknown := args.Unknown(known); len(unknown) > 0 {
		return fmt.Errorf("%w: CNI_ARGS: unknown keys [%s], set IgnoreUnknown=1 to allow them", roles.ErrEnv, strings.Join(unknown, ","))
	}
	return nil
}

// CheckRequest validates a request that was not made of the environment, with the
// same rules that Main has for the environment.
func CheckRequest(req *roles.Request, table roles.Table) error {
	return errors.Join(checkContainerID(req.ContainerID), checkIfName(req.IfName), checkArgs(req, nil, table), guardNetns(req))
}

// checkContainerID accepts the container IDs of the spec: a letter or digit, then
// letters, digits, dots, underscores and hyphens.
func checkContainerID(id string) error {
	if !roles.IsName(id) {
		return fmt.Errorf("%w: CNI_CONTAINERID: %q does not begin with a letter or digit, or has characters other than letters, digits, \".\", \"_\" and \"-\"", roles.ErrEnv, shortened(id))
	}
	return nil
}

// checkIfName accepts valid interface names.
func checkIfName(name string) error {
	if !utf8.ValidString(name) {
		return fmt.Errorf("%w: CNI_IFNAME: %q is not UTF-8: records and results cannot contain it", roles.ErrEnv, name)
	}
	if err := roles.LinkName(name); err != nil {
		return fmt.Errorf("%w: CNI_IFNAME: %w", roles.ErrEnv, err)
	}
	return nil
}

// shortened cuts a value for a message at 128 bytes, because its length is not
// bounded elsewhere.
func shortened(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// guardNetns returns an error if CNI_NETNS is the namespace of this process, for
// ADD, CHECK and DEL: a stale path under /proc may lead to the host's namespace.
// The role handles a path that does not exist or cannot be read.
func guardNetns(req *roles.Request) error {
	switch req.Verb {
	case roles.Add, roles.Check, roles.Del:
	default:
		return nil
	}
	if v := getenv(req.Env, envOverride); v == "1" || strings.EqualFold(v, "true") || req.Netns == "" {
		return nil
	}
	theirs, err := os.Stat(req.Netns)
	if err != nil {
		// A missing namespace is an error for ADD and not for DEL, so the role decides.
		return nil
	}
	ours, err := os.Stat(ownNetns)
	if err != nil {
		return fmt.Errorf("%w: %w", roles.ErrNetns, err)
	}
	if os.SameFile(theirs, ours) {
		return fmt.Errorf("%w: CNI_NETNS %q is the namespace that the plugin itself runs in: if this is intended, set %s=1", roles.ErrNetns, req.Netns, envOverride)
	}
	return nil
}
