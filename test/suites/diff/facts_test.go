package diff

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// facts are the observations of one side, by name. Names are the same on both sides.
type facts map[string]string

// absent is the value of a fact that only the other side has.
const absent = "-"

// add adds a fact; a second fact of the same name gets a number.
func (f facts) add(name, value string) {
	key := name
	for n := 2; ; n++ {
		if _, taken := f[key]; !taken {
			f[key] = value
			return
		}
		key = name + "#" + strconv.Itoa(n)
	}
}

// present is the value of a fact that says that an object exists. The facts of its attributes have its name, a space and their own
// name.
const present = "present"

// object adds an object and its attributes.
func (f facts) object(name string, attributes any, skip func(key string) bool) {
	f.add(name, present)
	f.flatten(name+" ", attributes, skip)
}

// flatten adds every leaf of a decoded JSON value under its path, with a prefix. Keys for which skip is true are left out.
func (f facts) flatten(prefix string, v any, skip func(key string) bool) {
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if skip == nil || !skip(k) {
				f.flatten(join(prefix, k), v[k], skip)
			}
		}
	case []any:
		if words, ok := flags(v); ok {
			f.add(prefix, words)
			return
		}
		for i, e := range v {
			f.flatten(fmt.Sprintf("%s[%d]", prefix, i), e, skip)
		}
	case float64:
		f.add(prefix, strconv.FormatFloat(v, 'f', -1, 64))
	default:
		f.add(prefix, fmt.Sprint(v))
	}
}

// join appends a key to a prefix: "result ips" or "link eth0 linkinfo.info_kind".
func join(prefix, key string) string {
	if strings.HasSuffix(prefix, " ") {
		return prefix + key
	}
	return prefix + "." + key
}

// flags returns a list of words as one sorted value, without those that change with the carrier.
func flags(list []any) (string, bool) {
	words := []string{}
	for _, e := range list {
		w, ok := e.(string)
		if !ok {
			return "", false
		}
		if !slices.Contains([]string{"LOWER_UP", "NO-CARRIER", "linkdown"}, w) {
			words = append(words, w)
		}
	}
	slices.Sort(words)
	return strings.Join(words, " "), true
}

// renamed returns f with every random name replaced, in names and values.
func (f facts) renamed(names []string) facts {
	r := strings.NewReplacer(names...)
	out := facts{}
	for _, k := range slices.Sorted(maps.Keys(f)) {
		out.add(r.Replace(k), r.Replace(f[k]))
	}
	return out
}

// difference is a fact whose values differ between the sides.
type difference struct{ fact, reference, ours string }

func (d difference) String() string {
	return fmt.Sprintf("%s: reference %q, cnibox %q", d.fact, d.reference, d.ours)
}

// compare returns the differences sorted by name. If only one side has an object, its attributes are left out, and for an interface
// its settings too.
func compare(reference, ours facts) []difference {
	all := maps.Clone(reference)
	maps.Copy(all, ours)
	var out []difference
	lonely := map[string]bool{}
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if ownedBy(k, lonely) {
			continue
		}
		d := difference{fact: k, reference: absent, ours: absent}
		if v, ok := reference[k]; ok {
			d.reference = v
		}
		if v, ok := ours[k]; ok {
			d.ours = v
		}
		if d.reference == d.ours {
			continue
		}
		out = append(out, d)
		if all[k] == present {
			lonely[k] = true
		}
	}
	return out
}

// ownedBy reports whether a fact is an attribute of one of the objects. Names of objects sort before those of their attributes, and
// "link" before "sysctl".
func ownedBy(fact string, objects map[string]bool) bool {
	for i := range fact {
		if fact[i] == ' ' && objects[fact[:i]] {
			return true
		}
	}
	who, setting, ok := strings.Cut(fact, " sysctl ")
	if !ok {
		return false
	}
	parts := strings.Split(setting, "/")
	return len(parts) > 3 && objects[who+" link "+strings.Join(parts[2:len(parts)-1], "/")]
}
