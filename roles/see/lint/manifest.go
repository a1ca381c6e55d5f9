package lint

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cnibox/cnibox/internal/yaml"
)

// definitionKind and definitionVersion identify the Kubernetes object that has a network for multi.
const (
	definitionKind    = "NetworkAttachmentDefinition"
	definitionVersion = "k8s.cni.cncf.io/v1"
)

// IsNetwork reports whether a file is meant as a network, or has a network for multi. In the directories of networks there are also other
// files: kubeconfigs, settings of other plugins, manifests.
func IsNetwork(data []byte) bool {
	data = bytes.TrimPrefix(data, byteOrderMark())
	root, err := parse(data)
	if err == nil {
		return isDefinition(root) || root.get("plugins") != nil || root.get("type") != nil && (root.get("name") != nil || root.get("cniVersion") != nil)
	}
	if data = bytes.TrimSpace(data); bytes.HasPrefix(data, []byte("{")) {
		return !bytes.HasPrefix(data, []byte("{{")) // a template of Helm
	}
	return slices.ContainsFunc(documents(data), func(d document) bool {
		return d.root.get("plugins") != nil || d.root.get("type") != nil && d.root.get("cniVersion") != nil || d.mayBeDefinition()
	})
}

// byteOrderMark is that of UTF-8.
func byteOrderMark() []byte { return []byte("\xef\xbb\xbf") }

// document is one document of a YAML file.
type document struct {
	// offset is the document's place in the file.
	offset int
	text   []byte
	// root is nil with err.
	root *value
	err  error
}

// mayBeDefinition reports whether a document, also an invalid one, is a NetworkAttachmentDefinition.
func (d *document) mayBeDefinition() bool {
	return isDefinition(d.root) || d.err != nil && regexp.MustCompile(`(?m)^kind: *["']?`+definitionKind).Match(d.text)
}

// documents returns the documents of a YAML file that are not empty.
func documents(data []byte) (all []document) {
	starts := []int{0}
	for _, m := range regexp.MustCompile(`(?m)^---[ \t\r]*$`).FindAllIndex(data, -1) {
		starts = append(starts, m[1])
	}
	for i, start := range starts {
		end := len(data)
		if i+1 < len(starts) {
			end = bytes.LastIndex(data[:starts[i+1]], []byte("---"))
		}
		d := document{offset: start, text: data[start:end]}
		doc, err := yaml.ToJSON(d.text)
		if err == nil {
			d.root, err = parse(doc)
		}
		d.err = err
		if err != nil || d.root.kind != null {
			all = append(all, d)
		}
	}
	return all
}

func isDefinition(root *value) bool { return root.get("kind").string() == definitionKind }

// isManifest reports whether a value is an object of Kubernetes.
func isManifest(root *value) bool { return root.get("apiVersion") != nil && root.get("kind") != nil }

// yamlFile checks a file that is not JSON. It reports whether it is one of YAML. Runtimes read no file that ends in .yaml or .yml.
func (c *check) yamlFile() bool {
	all := documents(c.data)
	if i := slices.IndexFunc(all, func(d document) bool { return d.root == nil && d.mayBeDefinition() }); i >= 0 {
		c.add(Fault, all[i].offset, "", "", "%v", all[i].err)
		return true
	}
	if len(all) == 0 || slices.ContainsFunc(all, func(d document) bool { return d.root == nil || d.root.kind != object }) {
		return false
	}
	for _, d := range all {
		if isDefinition(d.root) {
			c.definition(d.root, d.offset)
		}
	}
	isOther := !isManifest(all[0].root)
	switch {
	case len(all) > 1 && c.isForMulti():
		c.add(Fault, all[1].offset, "", "give each a file, named as the definition", "multi reads one document of a file")
	case isOther && (strings.HasSuffix(c.file, "ml") || c.isForMulti()): // .yaml or .yml
		c.inner(all[0].root, all[0].text, all[0].offset, "", "")
	case isOther:
		return false
	}
	return true
}

// isForMulti reports whether a file is in multi's usual directory of networks, MULTI.D/NAMESPACE/NAME.EXT.
func (c *check) isForMulti() bool {
	return filepath.Base(filepath.Dir(filepath.Dir(c.file))) == multiDir
}

// multiDir is the name of that directory.
const multiDir = "multi.d"

// definition checks a NetworkAttachmentDefinition. Without a configuration it names a network of the runtime's directory.
func (c *check) definition(root *value, offset int) {
	at := func(key string) int { return c.find(key, offset) }
	if v := root.get("apiVersion"); v.string() != definitionVersion {
		c.add(Fault, at("apiVersion"), "apiVersion", fmt.Sprintf("write %q", definitionVersion), "%q has no %s", v.string(), definitionKind)
	}
	name := root.get("metadata").get("name").string()
	switch base := filepath.Base(c.file); {
	case name == "":
		c.add(Fault, at("metadata"), "metadata", `add "name"`, "has no name")
	case c.isForMulti() && name != strings.TrimSuffix(base, filepath.Ext(base)):
		c.add(Fault, at("name"), "metadata.name", "rename the file to "+name+filepath.Ext(base), "%q is not the file's name without its extension", name)
	}
	conf := root.get("spec").get("config")
	switch {
	case conf == nil || conf.kind == null || conf.kind == text && strings.TrimSpace(conf.text) == "":
		return
	case conf.kind != text:
		c.add(Fault, at("config"), "spec.config", `quote it, or begin it with "|" in YAML`, "is not a string with the JSON of a network")
		return
	}
	inside := []byte(conf.text)
	inner, err := parse(inside)
	switch {
	case err != nil:
		f := syntaxFault(inside, err)
		c.add(Fault, at("config"), "spec.config", f.Hint, "line %d: %s", f.Line, f.Message)
	case inner.kind != object:
		c.add(Fault, at("config"), "spec.config", "", "is a JSON %s, want an object", inner.kind)
	default:
		c.inner(inner, inside, at("config"), "spec.config", name)
	}
}

// inner checks a network that is inside a file, at an offset and a path. Its own name is optional if it is given.
func (c *check) inner(root *value, inside []byte, offset int, path, name string) {
	in := &check{Linter: c.Linter, file: c.file, data: inside, inside: true, givenName: name}
	if path == "" { // the tree is that of the document in JSON
		in.data, _ = yaml.ToJSON(inside)
	}
	in.duplicateKeys(root, "")
	in.network(root)
	for _, f := range in.sorted() {
		key := f.Path[strings.LastIndexByte(f.Path, '.')+1:]
		key, _, _ = strings.Cut(key, "[")
		place := offset
		if key != "" {
			place = c.find(key, offset)
		}
		f.Line, f.Column = position(c.data, place)
		if path != "" && f.Path != "" {
			f.Path = path + ": " + f.Path
		} else if path != "" {
			f.Path = path
		}
		c.found = append(c.found, f)
	}
}

// find returns the place of a key after an offset, or that offset.
func (c *check) find(key string, offset int) int {
	m := regexp.MustCompile(`(^|[\s"'{,\\])` + regexp.QuoteMeta(key) + `\\?["']?\s*:`).FindIndex(c.data[offset:])
	if m == nil {
		return offset
	}
	return offset + m[0] + bytes.Index(c.data[offset+m[0]:], []byte(key))
}
