package netops_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"github.com/cnibox/cnibox/netops"
)

// TestNetDoc: the documentation of Net has each of its methods once, by what it is for.
func TestNetDoc(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "net.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(file.Decls, func(d ast.Decl) bool {
		g, ok := d.(*ast.GenDecl)
		return ok && g.Tok == token.TYPE && g.Specs[0].(*ast.TypeSpec).Name.Name == "Net"
	})
	var named, have []string
	for _, one := range regexp.MustCompile(`\[Net\.(\w+)\]`).FindAllStringSubmatch(file.Decls[at].(*ast.GenDecl).Doc.Text(), -1) {
		named = append(named, one[1])
	}
	for m := range reflect.TypeFor[*netops.Net]().Methods() {
		have = append(have, m.Name)
	}
	slices.Sort(named)
	slices.Sort(have)
	if !slices.Equal(named, have) {
		t.Errorf("the documentation has %q, the methods are %q", named, have)
	}
}
