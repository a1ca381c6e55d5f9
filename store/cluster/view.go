package cluster

// View is the table of a registry's Watch. It has what the Followers of all registries have in common.
type View struct {
	Table Table
	Relay *Relay
	// Config is the name of the configuration in Snapshot.Faults, and Warn is called with each of its keys that has no
	// effect. They are for registries with a configuration. Warn may be nil.
	Config string
	Warn   func(string)
	// fault is why the registry's configuration cannot be used.
	fault error
}

// Configure sets the registry's configuration, or a fault if err is not nil: then the last valid one stays in force. It
// reports whether the table has changed.
func (v *View) Configure(c *Config, warnings []string, err error) (changed bool) {
	v.fault = err
	if err != nil {
		return v.Table.Config() != nil && v.Table.Put(v.Config, Node{}, err)
	}
	changed = v.Table.Remove(v.Config)
	if !v.Table.SetConfig(c) {
		return changed
	}
	for _, w := range warnings {
		if v.Warn != nil {
			v.Warn(w)
		}
	}
	return true
}

// PutRecord stores a record, or its fault if err is not nil. Before the first valid configuration the table stays empty.
func (v *View) PutRecord(name string, n Node, err error, listing bool) {
	c := v.Table.Config()
	if c == nil {
		return
	}
	if err == nil {
		err = n.CheckIn(c)
	}
	v.Changed(v.Table.Put(name, n, err), listing)
}

// Remove removes a record.
func (v *View) Remove(name string, listing bool) { v.Changed(v.Table.Remove(name), listing) }

// Changed reports the table if it has changed, unless all records are being read.
func (v *View) Changed(changed, listing bool) {
	if changed && !listing {
		v.Relay.Put(v.Table.Snapshot)
	}
}

// Failed reports that the registry cannot be reached.
func (v *View) Failed(err error) { v.Relay.Fail(err) }

// Recovered reports the table, or why there has been no valid configuration yet.
func (v *View) Recovered() {
	if v.fault != nil && v.Table.Config() == nil {
		v.Relay.Fail(v.fault)
		return
	}
	v.Relay.Put(v.Table.Snapshot)
}
