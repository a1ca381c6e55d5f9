package lint

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write keydocs.txt")

const (
	rolesDir  = "../.."
	rolesPath = "github.com/cnibox/cnibox/roles"
	typesPath = "github.com/containernetworking/cni/pkg/types"
)

// TestKeyDocs keeps keydocs.txt equal to the doc comments of the roles'
// configurations.
func TestKeyDocs(t *testing.T) {
	docs := map[string]string{
		typesPath + ".DNS.Nameservers": "Addresses of name servers, in order of preference.",
		typesPath + ".DNS.Domain":      "The local domain, for short names.",
		typesPath + ".DNS.Search":      "Domains to search for short names.",
		typesPath + ".DNS.Options":     "Options of the resolver.",
		"route.dst":                    "Destination, as a CIDR.",
		"route.gw":                     "Gateway; by default the subnet's.",
		"route.mtu":                    "MTU along the path.",
		"route.advmss":                 "Maximal segment size to announce.",
		"route.priority":               "Metric; lower is preferred.",
		"route.table":                  "Routing table, by number.",
		"route.scope":                  "Scope, by number: 0 universe, 253 link, 254 host.",
	}
	err := filepath.WalkDir(rolesDir, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() == "testdata" || strings.HasPrefix(dir, rolesDir+"/cli") {
			return err
		}
		rel, err := filepath.Rel(rolesDir, dir)
		if err != nil {
			return err
		}
		return collect(docs, dir, filepath.ToSlash(filepath.Join(rolesPath, rel)))
	})
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	of := ""
	for _, k := range slices.Sorted(maps.Keys(docs)) {
		dot := strings.LastIndexByte(k, '.')
		if k[:dot] != of {
			of = k[:dot]
			fmt.Fprintln(&want, of)
		}
		fmt.Fprintf(&want, "%s\t%s\n", k[dot+1:], docs[k])
	}
	if *update {
		if err := os.WriteFile("keydocs.txt", want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want.String(), keyDocs); diff != "" {
		t.Errorf("keydocs.txt differs from the doc comments; run 'make generate'\n(-comments +file):\n%s", diff)
	}
}

// collect adds the documented fields of a package's configuration: of the
// structs named Conf, NetConf, PairConf, IPAMConf and Route, and of those that they use.
func collect(docs map[string]string, dir, pkg string) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	structs := map[string]*ast.StructType{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if ts, ok := n.(*ast.TypeSpec); ok {
				if st, ok := ts.Type.(*ast.StructType); ok {
					structs[ts.Name.Name] = st
				}
			}
			return true
		})
	}
	todo, seen := []string{"Conf", "NetConf", "PairConf", "IPAMConf", "Route"}, map[string]bool{}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		st := structs[name]
		if st == nil || seen[name] {
			continue
		}
		seen[name] = true
		fields(docs, pkg+"."+name, st)
		ast.Inspect(st, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				todo = append(todo, id.Name)
			}
			return true
		})
	}
	return nil
}

// fields adds the fields of one struct, and of structs without a name in it.
func fields(docs map[string]string, prefix string, st *ast.StructType) {
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		text := f.Doc.Text()
		if text == "" {
			text = f.Comment.Text()
		}
		for _, n := range f.Names {
			if text != "" {
				docs[prefix+"."+n.Name] = strings.Join(strings.Fields(text), " ")
			}
			typ := f.Type
			for {
				if a, ok := typ.(*ast.ArrayType); ok {
					typ = a.Elt
				} else if p, ok := typ.(*ast.StarExpr); ok {
					typ = p.X
				} else {
					break
				}
			}
			if inner, ok := typ.(*ast.StructType); ok {
				fields(docs, prefix+"."+n.Name, inner)
			}
		}
	}
}
