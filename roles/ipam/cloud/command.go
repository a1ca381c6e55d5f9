package cloud

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cnibox/cnibox/roles"
	"github.com/cnibox/cnibox/roles/call/attachment"
	"github.com/cnibox/cnibox/roles/call/leasing"
	"github.com/cnibox/cnibox/roles/cloud/metadata"
	"github.com/cnibox/cnibox/roles/ipam/cloud/feed"
	"github.com/cnibox/cnibox/store"
)

// commands returns the role's commands of the command line.
func commands() []roles.CommandVerb {
	look := []roles.Flag{
		{Name: "cooldown", Default: defaultCooldown.String(), Help: "the networks' ipam.cooldown"},
		{Name: "kubelet-config", Default: "/var/lib/kubelet/config.yaml", Help: "kubelet's configuration file with maxPods, if it exists"},
	}
	return []roles.CommandVerb{
		{Name: "cloud", Help: "the cloud's addresses: the pool, its owners and differences"},
		{
			Name: "cloud show", Args: "[ADDRESS…]", Run: show, Example: "cloud show 10.240.0.36",
			Help:  "show the cloud's addresses by NIC and subnet, their owners and ages",
			Flags: append(look, roles.Flag{Name: "providers", Switch: true, Help: "list the supported providers instead"}),
		},
		{
			Name: "cloud refresh", Run: refresh, Example: "cloud refresh",
			Help: "query the cloud now: all known sources, or the given one",
			Flags: []roles.Flag{
				{Name: "provider", Help: "provider to query, as ipam.provider"},
				{Name: "url", Help: "base URL, as ipam.url"},
				{Name: "file", Help: "file of the provider \"file\", as ipam.file"},
			},
		},
		{
			Name: "cloud reconcile", Run: reconcile, Example: "cloud reconcile --fix",
			Help:  "list the differences between cloud, leases, attachments and links, with the action for each",
			Flags: append(look, roles.Flag{Name: "fix", Switch: true, Help: "release leaked addresses"}),
		},
	}
}

func show(ctx context.Context, h *roles.Host, flags map[string]string, args []string) (any, error) {
	if flags["providers"] != "" {
		return shownProviders(metadata.Providers()), nil
	}
	for _, a := range args {
		if _, err := roles.ParseAddr(a); err != nil {
			return nil, roles.Usagef("%v", err)
		}
	}
	return readShown(ctx, h, flags, args)
}

// readShown reads the inventory with the settings of the flags.
func readShown(ctx context.Context, h *roles.Host, flags map[string]string, of []string) (*Shown, error) {
	cooldown, err := time.ParseDuration(flags["cooldown"])
	if err != nil || cooldown < 0 {
		return nil, roles.Usagef("--cooldown %q: want a time such as 30s", flags["cooldown"])
	}
	v, err := takeInventory(ctx, h, cooldown)
	if err != nil {
		return nil, err
	}
	out := v.shown(of)
	out.Kubelet = readKubelet(flags["kubelet-config"])
	return out, nil
}

// refresh queries all known sources, or the one in the flags.
func refresh(ctx context.Context, h *roles.Host, flags map[string]string, _ []string) (any, error) {
	sources, err := sourcesToQuery(ctx, h, flags)
	if err != nil {
		return nil, err
	}
	out := &Refreshed{now: h.Now}
	for _, o := range sources {
		o.Force, o.Patient = true, true
		before, err := feed.Known(ctx, h, o.Source())
		if errors.Is(err, store.ErrNotFound) {
			before, err = &store.CloudSource{}, nil
		}
		if err != nil {
			return nil, err
		}
		s, err := feed.Current(ctx, h, o)
		if err != nil && len(sources) == 1 {
			return nil, err
		}
		out.add(o.Source(), before, s, err)
	}
	return out, nil
}

// sourcesToQuery returns the known sources. Without any it returns the default, which detects the
// cloud.
func sourcesToQuery(ctx context.Context, h *roles.Host, flags map[string]string) ([]feed.Options, error) {
	given := feed.Options{Provider: flags["provider"], URL: flags["url"], File: flags["file"]}
	if given != (feed.Options{}) {
		if _, ok := metadata.Lookup(cmp.Or(given.Provider, "auto")); !ok {
			return nil, roles.Usagef("--provider %q: see cnibox cloud show --providers", given.Provider)
		}
		if given.URL != "" {
			if err := metadata.CheckURL(given.URL); err != nil {
				return nil, roles.Usagef("--url: %v", err)
			}
		}
		return []feed.Options{given}, nil
	}
	var names []string
	err := h.Store.View(ctx, func(tx *store.Tx) error {
		sources, err := tx.CloudSources()
		for _, s := range sources {
			names = append(names, s.Name)
		}
		return err
	})
	if err != nil || len(names) == 0 {
		return []feed.Options{{}}, err
	}
	var all []feed.Options
	for _, name := range names {
		if o, ok := feed.OptionsOf(name); ok {
			all = append(all, o)
		}
	}
	return all, nil
}

// reconcile reports the differences. With --fix it first releases leaked addresses.
func reconcile(ctx context.Context, h *roles.Host, flags map[string]string, _ []string) (any, error) {
	out := &Reconciled{Differences: []Difference{}}
	if flags["fix"] != "" {
		freed, err := attachment.Reap(ctx, h, "")
		if err != nil {
			return nil, fmt.Errorf("release leaked addresses: %w", err)
		}
		out.Freed = &freed
	}
	s, err := readShown(ctx, h, flags, nil)
	if err != nil {
		return nil, err
	}
	out.Differences = append(out.Differences, s.Differences...)
	return out, nil
}

// shownProviders is the output of `cnibox cloud show --providers`.
type shownProviders []metadata.Provider

// MarshalJSON omits the fields that are functions.
func (p shownProviders) MarshalJSON() ([]byte, error) {
	type provider struct {
		Name    string `json:"name"`
		Summary string `json:"summary"`
		Default string `json:"default,omitempty"`
	}
	all := make([]provider, len(p))
	for i, one := range p {
		all[i] = provider{one.Name, one.Summary, one.Default}
	}
	return json.Marshal(all)
}

// Table shows the providers.
func (p shownProviders) Table() (head []string, rows [][]string) {
	for _, one := range p {
		rows = append(rows, []string{one.Name, cmp.Or(one.Default, "-"), one.Summary})
	}
	return []string{"PROVIDER", "ASKS", "GIVES"}, rows
}

// Refreshed is the output of `cnibox cloud refresh`.
type Refreshed struct {
	Sources []RefreshedSource `json:"sources"`
	now     func() time.Time
}

// RefreshedSource is the result of one request.
type RefreshedSource struct {
	Name string `json:"name"`
	// Addresses and Ranges count what is available to pods. More and Fewer count the single
	// addresses that this reply added and removed.
	Addresses int `json:"addresses"`
	Ranges    int `json:"ranges"`
	More      int `json:"more"`
	Fewer     int `json:"fewer"`
	// Fault is the reason if there is no new reply.
	Fault   string   `json:"fault,omitempty"`
	Dropped []string `json:"dropped,omitempty"`
}

func (r *Refreshed) add(name string, before, s *store.CloudSource, err error) {
	one := RefreshedSource{Name: name}
	switch {
	case err != nil:
		one.Fault = err.Error()
		s = before
	case s.Answered.Before(s.Asked), s.Failed > 0:
		one.Fault = s.Fault
		if wait := s.NotBefore.Sub(r.now()); wait > 0 {
			one.Fault += fmt.Sprintf("; it is not queried again for %s", brief(wait))
		}
	}
	was, is := singles(before), singles(s)
	for a := range is {
		if !was[a] {
			one.More++
		}
	}
	for a := range was {
		if !is[a] {
			one.Fewer++
		}
	}
	one.Addresses, one.Ranges, one.Dropped = len(is), rangeCount(s), s.Dropped
	r.Sources = append(r.Sources, one)
}

// String has a line for each source and for each dropped item.
func (r *Refreshed) String() string {
	var lines []string
	for _, s := range r.Sources {
		line := fmt.Sprintf("%s: %d addresses and %d ranges for pods, %d more and %d fewer than before", s.Name, s.Addresses, s.Ranges, s.More, s.Fewer)
		if s.Fault != "" {
			line += "; no new reply: " + s.Fault
		}
		lines = append(lines, line)
		for _, d := range s.Dropped {
			lines = append(lines, "  not used: "+d)
		}
	}
	return strings.Join(lines, "\n")
}

// Reconciled is the output of `cnibox cloud reconcile`.
type Reconciled struct {
	// Freed counts the released addresses. It is nil without --fix.
	Freed       *int         `json:"freed,omitempty"`
	Differences []Difference `json:"differences"`
}

// Table shows the differences.
func (r *Reconciled) Table() (head []string, rows [][]string) {
	for _, d := range r.Differences {
		rows = append(rows, []string{d.What, d.Is, d.Do})
	}
	return []string{"WHAT", "DIFFERENCE", "WHAT TO DO"}, rows
}

// String summarizes the actions.
func (r *Reconciled) String() string {
	line := fmt.Sprintf("%d differences", len(r.Differences))
	if r.Freed != nil {
		line = fmt.Sprintf("released %d addresses of containers that do not exist; %s left", *r.Freed, line)
	}
	return line
}

// planVerb returns `cnibox cloud plan`.
func planVerb() roles.CommandVerb {
	read := func(ctx context.Context, h *roles.Host, conf []byte) (*leasing.Allocator, error) {
		a, err := newHandler(conf)
		if err != nil {
			return nil, err
		}
		source, err := feed.Known(ctx, h, a.feed.Source())
		if err != nil {
			return nil, fmt.Errorf("%w: run 'cnibox cloud refresh' first", err)
		}
		alloc, _, err := a.allocator(ctx, h, nil, source)
		return alloc, err
	}
	return leasing.PlanVerb("cloud plan", read, typeName, azureType)
}
