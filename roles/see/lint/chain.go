package lint

import "github.com/cnibox/cnibox/roles"

// chain checks the order of a list's plugins.
func (c *check) chain(plugins []*pluginInfo) {
	const loopback = "loopback" // it sets up an interface that each namespace has
	maker := ""
	for i, p := range plugins {
		if p.role == nil {
			if maker == "" && p.typ != "" && p.typ != loopback {
				maker = p.typ
			}
			continue
		}
		switch p.role.Kind {
		case roles.IPAM:
			c.fault(p.value, p.path, `name it in the "ipam" of the plugin that makes the interface`, "%s is an IPAM plugin and cannot be a member of a list", p.typ)
		case roles.Daemon:
			c.fault(p.value, p.path, "", "%s is a daemon and cannot be a member of a list", p.typ)
		case roles.Chained:
			if i == 0 {
				c.fault(p.value, p.path, "put the plugin that makes the interface first", "%s needs the result of an earlier plugin and is first", p.typ)
			}
		default:
			if maker != "" && p.typ != loopback {
				c.warn(p.value, p.path, "", "%s makes the interface that %s has made already", p.typ, maker)
			}
			if p.typ != loopback {
				maker = p.typ
			}
		}
	}
}
