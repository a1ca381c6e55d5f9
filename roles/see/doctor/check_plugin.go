package doctor

import "strings"

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
			return "not in " + strings.Join(p.Dirs, ", "), p.install(p.Type)
		}),
		check("plugin-dangling", "a plugin is a link to a file that does not exist", Error, func(p *Plugin) (string, string) {
			if !p.Dangling {
				return "", ""
			}
			return p.Program, p.install(p.Type, "--force")
		}),
		check("plugin-replaced", "another program replaced a plugin of cnibox", Error, func(p *Plugin) (string, string) {
			if p.Path == "" || p.Dangling || p.Ours || !p.Role || !p.Replaced {
				return "", ""
			}
			return "it is " + p.Program + " now", p.install(p.Type, "--force")
		}),
		check("plugin-version", "a plugin is another version of cnibox", Warning, func(p *Plugin) (string, string) {
			if !p.Ours || p.Current || p.Dangling {
				return "", ""
			}
			return "it is " + p.Program, p.install(p.Type)
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
			return p.Writable.Error(), "chown root " + p.WritablePath + " && chmod go-w " + p.WritablePath
		}),
		{ID: "plugin-foreign", Title: "plugins that cnibox has are another program's", Reads: files, Severity: Info, find: func(f *Facts, add add) {
			for _, r := range f.Runtimes {
				var types []string
				fix := ""
				for _, p := range f.Plugins {
					if p.Runtime == r.Name && p.Path != "" && !p.Dangling && !p.Ours && p.Role && !p.Replaced {
						types = append(types, p.Type)
						if fix == "" || !p.Home {
							fix = p.install("--force")
						}
					}
				}
				if len(types) > 0 {
					add(r.Name, strings.Join(types, ", "), fix)
				}
			}
		}},
	}
}

// install returns the command that makes the runtime execute this program's plugin. It replaces no file in another program's
// directory, but makes the runtime search this program's own directory first.
func (p *Plugin) install(args ...string) string {
	switch {
	case !p.Role:
		return "put " + p.Type + " into " + p.Dirs[0]
	case !p.Home:
		return p.Install
	}
	return strings.Join(append([]string{p.Install}, args...), " ")
}
