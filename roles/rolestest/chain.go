package rolestest

import (
	"encoding/json"
	"strings"
)

// Run makes a call as a runtime does. For a chained role it also calls the interface
// plugin: before ADD, which gets the plugin's result as prevResult, before GC and
// STATUS, and after CHECK and DEL. A chained ADD that fails must not change the
// interface plugin's objects.
func (b *bench) Run(c Call) Answer {
	b.t.Helper()
	if b.conf.Chain == "" || c.Type != b.s.Type {
		return b.Env.Run(c)
	}
	first := b.first(c)
	switch c.Verb {
	case "ADD":
		return b.runAdd(first, c)
	case "DEL", "CHECK":
		return b.runBoth(c, first, c.Verb == "DEL")
	}
	if a := b.Env.Run(first); a.Code != 0 {
		return a
	}
	return b.Env.Run(c)
}

// OK is Env.OK with Run's calls.
func (b *bench) OK(c Call) Answer { b.t.Helper(); return b.assertOK(c, b.Run(c)) }

// Fail is Env.Fail with Run's calls.
func (b *bench) Fail(c Call, code int) Answer { b.t.Helper(); return b.assertFails(c, b.Run(c), code) }

// first returns the call of the interface plugin for a chained call.
func (b *bench) first(c Call) Call {
	b.t.Helper()
	var own map[string]json.RawMessage
	if err := json.Unmarshal([]byte(c.Conf), &own); err != nil {
		b.t.Fatal(err)
	}
	var kind struct{ Type string }
	if err := json.Unmarshal([]byte(b.conf.Chain), &kind); err != nil {
		b.t.Fatal(err)
	}
	given := map[string]any{}
	for _, k := range []string{"name", "cniVersion", "prevResult", "cni.dev/valid-attachments"} {
		if v, ok := own[k]; ok {
			given[k] = v
		}
	}
	c.Type, c.Conf, c.Probe = kind.Type, WithKeys(b.t, b.conf.Chain, given), ""
	return c
}

// runAdd runs ADD of both plugins. If the chained ADD fails, DEL of both follows, as a
// runtime does.
func (b *bench) runAdd(first, c Call) Answer {
	b.t.Helper()
	made := b.Env.Run(first)
	if made.Code != 0 {
		return made
	}
	before := b.state()
	c.Conf = WithKeys(b.t, c.Conf, map[string]any{"prevResult": json.RawMessage(made.Stdout)})
	a := b.Env.Run(c)
	if a.Code <= 0 {
		return a // ADD succeeded, or was killed
	}
	if b.warmed {
		b.same(before, "after a failed ADD behind a third-party plugin")
	}
	first.Verb = "DEL"
	b.Env.OK(first)
	return a
}

// runBoth runs the chained call, and the interface plugin's if the first succeeded. For
// DEL the answer is that of the chained call.
func (b *bench) runBoth(c, first Call, del bool) Answer {
	b.t.Helper()
	a := b.Env.Run(c)
	if a.Code != 0 {
		return a
	}
	after := b.Env.Run(first)
	if after.Code != 0 || !del {
		return after
	}
	return a
}

// list returns the configuration that a runtime caches for a call.
func (b *bench) list(c Call) Call {
	if b.conf.Chain == "" {
		return c
	}
	c.Conf = WithKeys(b.t, `{"plugins":[`+strings.Join([]string{b.first(c).Conf, c.Conf}, ",")+`]}`, map[string]any{"name": b.network(), "cniVersion": newest})
	return c
}
