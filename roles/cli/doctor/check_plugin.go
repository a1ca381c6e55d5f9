package doctor

import (
	"fmt"
	"strings"
)

// pluginChecks look at the files of the plugins that the used networks name.
func pluginChecks() []Check {
	const files = "the plugins of the used networks, in the runtimes' directories"
	check := func(id, title string, s Severity, find func(p *Plugin) (evidence, fix string)) Check {
		return Check{ID: id, Title: title, Reads: files, Severity: s, find: func(f *Facts, add add) {
			for i := range f.Plugins {
				p := &f.Plugins[i]
				if evidence, fix := find(p); evidence != "" {
					object := p.Path
					if object == "" {
						object = p.Type
					}
					add(object, evidence+" ("+p.Runtime+")", fix)
				}
			}
		}}
	}
	return []Check{
		check("plugin-missing", "a plugin is not installed", Error, func(p *Plugin) (string, string) {
			if p.Path != "" {
				return "", ""
			}
			return "not in " + strings.Join(p.Dirs, ", "), p.install("")
		}),
		check("plugin-dangling", "a plugin is a link to a file that does not exist", Error, func(p *Plugin) (string, string) {
			if !p.Dangling {
				return "", ""
			}
			return p.Program, p.install(" --force")
		}),
		check("plugin-replaced", "another program replaced a plugin of cnibox", Error, func(p *Plugin) (string, string) {
			if p.Path == "" || p.Dangling || p.Ours || !p.Role || !p.Placed {
				return "", ""
			}
			return "it is " + p.Program + " now, and cnibox is in the directory", p.install(" --force")
		}),
		check("plugin-version", "a plugin is another version of cnibox", Warning, func(p *Plugin) (string, string) {
			if !p.Ours || p.Current || p.Dangling {
				return "", ""
			}
			return "it is " + p.Program, p.install("")
		}),
		check("plugin-mode", "a plugin cannot be executed", Error, func(p *Plugin) (string, string) {
			if p.Path == "" || p.Dangling || p.Executable {
				return "", ""
			}
			return "its mode has no x", "chmod a+x " + p.Path
		}),
		check("plugin-writable", "other users can replace a plugin, which runs as root", Error, func(p *Plugin) (string, string) {
			if p.Writable == nil {
				return "", ""
			}
			return p.Writable.Error(), "chmod go-w " + p.Path
		}),
		{ID: "plugin-foreign", Title: "plugins that cnibox has are another program's", Reads: files, Severity: Info, find: func(f *Facts, add add) {
			for _, r := range f.Runtimes {
				var types []string
				for _, p := range f.Plugins {
					if p.Runtime == r.Name && p.Path != "" && !p.Dangling && !p.Ours && p.Role && !p.Placed {
						types = append(types, p.Type)
					}
				}
				if len(types) > 0 {
					add(r.Name, strings.Join(types, ", "), "cnibox install --dir "+r.PluginDirs[0])
				}
			}
		}},
	}
}

// install returns the command that installs the plugin.
func (p *Plugin) install(flags string) string {
	dir := ""
	if len(p.Dirs) > 0 {
		dir = p.Dirs[0]
	}
	if !p.Role {
		return "put " + p.Type + " into " + dir
	}
	return fmt.Sprintf("cnibox install %s --dir %s%s", p.Type, dir, flags)
}
