package lint

import (
	_ "embed"
	"encoding/json"
	"strings"

	"github.com/cnibox/cnibox/roles"
)

// keyDocs has the structs of the roles' configurations, and after each its documented fields. It is generated from
// their doc comments: `make generate`.
//
//go:embed keydocs.txt
var keyDocs string

// Key is one key that a role reads.
type Key struct {
	// Path is the JSON path. "[]" stands for every item of a list.
	Path string `json:"path"`
	Type string `json:"type"`
	Doc  string `json:"doc,omitempty"`
}

// Explain lists the keys of a role's configuration in the order in which they
// are declared.
func Explain(r *roles.Role) []Key {
	if r.Conf == nil {
		return nil
	}
	s := roleSchema(r)
	if s == nil {
		return nil
	}
	docs := map[string]string{}
	of := ""
	for line := range strings.Lines(keyDocs) {
		name, doc, isField := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if isField {
			docs[of+"."+name] = doc
		} else {
			of = name
		}
	}
	return explain(nil, s, "", docs)
}

func explain(out []Key, s *schema, path string, docs map[string]string) []Key {
	for _, k := range s.order {
		child := s.keys[k]
		if strings.HasPrefix(k, "cni.dev/") || path == "" && k == "prevResult" {
			continue // runtimes set it; files do not have it
		}
		at := join(path, k)
		out = append(out, Key{Path: at, Type: child.name, Doc: docOf(docs, child.doc, k)})
		for child.elem != nil {
			child, at = child.elem, at+"[]"
		}
		out = explain(out, child, at, docs)
	}
	return out
}

// docOf returns a key's documentation. It replaces the name of the Go field at the start of the doc
// comment with the key.
func docOf(docs map[string]string, name, key string) string {
	field := name[strings.LastIndexByte(name, '.')+1:]
	if rest, ok := strings.CutPrefix(docs[name], field+" "); ok {
		return key + " " + rest
	}
	return docs[name]
}

// Types returns the plugin types in a configuration, including IPAM plugins. Invalid data has none.
func Types(data []byte) []string {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var conf struct {
		plugin
		Plugins []struct {
			plugin
			Plugins []plugin `json:"plugins"` // of a fused list
		} `json:"plugins"`
	}
	if json.Unmarshal(data, &conf) != nil {
		return nil
	}
	all := []plugin{conf.plugin}
	for _, p := range conf.Plugins {
		all = append(append(all, p.plugin), p.Plugins...)
	}
	var out []string
	for _, p := range all {
		for _, t := range []string{p.Type, p.IPAM.Type} {
			if t != "" {
				out = append(out, t)
			}
		}
	}
	return out
}
