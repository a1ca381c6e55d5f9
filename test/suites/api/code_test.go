package api

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const (
	module = "github.com/cnibox/cnibox/"
	root   = "cnibox" // the command that has all others
)

// code is the product's packages with their types.
type code struct {
	fset *token.FileSet
	info *types.Info
	// uses are the places that name a function of the product.
	uses map[types.Object][]place
	// calls are all calls.
	calls []call
	// flags are the flags of commands.
	flags []option
}

// option is the literal of a flag.
type option struct {
	place
	name, kind string
}

// place is in a function, and in the literal of a command with this name if there is one.
type place struct {
	function types.Object
	command  string
	pkg      *types.Package
}

type call struct {
	place
	callee types.Object
	args   []ast.Expr
}

// readCode returns the lines that the code says.
func readCode(t *testing.T) []string {
	c := load(t)
	var out []string
	say := func(format string, a ...any) { out = append(out, fmt.Sprintf(format, a...)) }

	for _, call := range c.calls {
		switch {
		case call.named("internal/metrics", "Gauge"), call.named("internal/metrics", "Counter"), call.named("internal/metrics", "Histogram"):
			var words []string
			for i, arg := range call.args {
				if s, ok := c.text(arg); ok && i != 1 { // 1 is the help
					words = append(words, s)
				}
			}
			if len(words) > 0 {
				say("metric %s %s", strings.ToLower(call.callee.Name()), strings.Join(words, " "))
			}
		case call.callee.Name() == "HandleFunc" && call.in("roles/cluster"):
			if s, ok := c.text(call.args[0]); ok {
				say("socket %s %s", call.pkg.Name(), s)
			}
		}
	}
	for _, arg := range c.written(func(call call) (int, bool) {
		switch {
		case call.named("roles/cli", "writeJSON"):
			return 1, true
		case call.named("roles/cli", "writeElements"):
			return 0, true
		case call.named("encoding/json", "Encode") && (call.in("roles/cli") || call.in("roles/see") || call.in("roles/cluster") && !call.in("roles/cluster/ranges") || call.in("roles/netpolicy")):
			return 0, true
		}
		return 0, false
	}) {
		for _, verb := range c.verbs(arg.place, nil) {
			verb = cmp.Or(verb, "any verb")
			c.walk(arg.value, func(path, kind string) { say("json %s: %s %s", verb, path, kind) })
		}
	}
	for what, name := range map[string]string{"asked": "Decode", "answered": "Into"} {
		for _, arg := range c.written(func(call call) (int, bool) { return 0, call.named("internal/service", name) }) {
			c.walk(arg.value, func(path, kind string) { say("json %s: %s %s", what, path, kind) })
		}
	}
	for _, arg := range c.written(func(call call) (int, bool) {
		if call.named("store/internal/kv", "Put") || call.named("internal/coldjson", "Marshal") || call.named("encoding/json", "Marshal") || call.named("encoding/json", "MarshalIndent") {
			return stateArgument(call.callee), call.in("store") && !call.in("store/cluster/etcd") && !call.in("store/cluster/kube/rest")
		}
		return 0, false
	}) {
		if name := c.typeName(arg.value); name != "" {
			c.walk(arg.value, func(path, kind string) { say("state %s: %s %s", name, path, kind) })
		}
	}
	for _, f := range c.flags {
		for _, verb := range c.verbs(f.place, nil) {
			say("flag %s --%s %s", cmp.Or(verb, "any verb"), f.name, f.kind)
		}
	}
	for _, name := range c.exitCodes() {
		say("exit %s", name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// stateArgument returns which parameter of a function takes the value: the first that is an interface or a type parameter.
func stateArgument(f types.Object) int {
	params := f.Type().(*types.Signature).Params()
	for i := range params.Len() {
		if open(params.At(i).Type()) {
			return i
		}
	}
	return 0
}

// open reports whether a parameter takes values of several types.
func open(t types.Type) bool {
	_, parameter := t.(*types.TypeParam)
	return parameter || types.IsInterface(t)
}

func (c call) named(pkg, name string) bool {
	p := c.callee.Pkg()
	return p != nil && c.callee.Name() == name && (p.Path() == module+pkg || p.Path() == pkg)
}

func (p place) in(pkg string) bool { return strings.HasPrefix(p.pkg.Path()+"/", module+pkg+"/") }

// value is an expression that is written as JSON, and where.
type value struct {
	place
	value ast.Expr
}

// written returns the values of calls. A value that is a parameter of the function is followed to the function's callers.
func (c *code) written(of func(call) (int, bool)) []value {
	var out []value
	type sink struct {
		function types.Object
		argument int
	}
	var sinks []sink
	add := func(call call, argument int) {
		if argument >= len(call.args) {
			return
		}
		arg := ast.Unparen(call.args[argument])
		if id, ok := arg.(*ast.Ident); ok && call.function != nil && open(c.info.TypeOf(id)) {
			params := call.function.Type().(*types.Signature).Params()
			for i := range params.Len() {
				if s := (sink{call.function, i}); params.At(i) == c.info.Uses[id] && !slices.Contains(sinks, s) {
					sinks = append(sinks, s)
					return
				}
			}
		}
		out = append(out, value{call.place, arg})
	}
	for _, call := range c.calls {
		if argument, ok := of(call); ok {
			add(call, argument)
		}
	}
	for i := 0; i < len(sinks); i++ {
		for _, call := range c.calls {
			if origin(call.callee) == sinks[i].function {
				add(call, sinks[i].argument)
			}
		}
	}
	return out
}

// verbs returns the names of the commands that lead to a place. A role's own verb is "ROLE …".
func (c *code) verbs(p place, seen []types.Object) []string {
	if p.command == root {
		return []string{""}
	}
	if p.function == nil || slices.Contains(seen, p.function) {
		return nil
	}
	var out []string
	for _, use := range c.uses[p.function] {
		for _, above := range c.verbs(use, append(slices.Clip(seen), p.function)) {
			out = append(out, strings.TrimSpace(above+" "+p.command))
		}
	}
	if len(out) == 0 && !p.in("roles/cli") && !p.in("roles/see") {
		out = []string{strings.TrimSpace(p.pkg.Name() + " … " + p.command)}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// walk calls say for each member of a value.
func (c *code) walk(e ast.Expr, say func(path, kind string)) {
	if lit, ok := e.(*ast.CompositeLit); ok {
		if _, isMap := c.info.TypeOf(lit).Underlying().(*types.Map); isMap {
			for _, el := range lit.Elts {
				if key, ok := c.text(el.(*ast.KeyValueExpr).Key); ok {
					walkType(c.info.TypeOf(el.(*ast.KeyValueExpr).Value), "."+key, say, nil)
				}
			}
			return
		}
	}
	walkType(c.info.TypeOf(e), "", say, nil)
}

// typeName returns the name of the type of a record, or "" if it has none.
func (c *code) typeName(e ast.Expr) string {
	t := c.info.TypeOf(e)
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if named, ok := t.(*types.Named); ok && strings.HasPrefix(named.Obj().Pkg().Path(), module) {
		return named.Obj().Pkg().Name() + "." + named.Obj().Name()
	}
	return ""
}

// walkType walks a type as encoding/json does.
func walkType(t types.Type, path string, say func(path, kind string), seen []types.Type) {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		walkType(p.Elem(), path, say, seen)
		return
	}
	if slices.ContainsFunc(seen, func(s types.Type) bool { return types.Identical(s, t) }) {
		say(path, "again")
		return
	}
	if _, named := t.(*types.Named); named {
		seen = append(slices.Clip(seen), t)
		set := types.NewMethodSet(types.NewPointer(t))
		for _, name := range []string{"MarshalJSON", "MarshalText"} {
			if m := set.Lookup(nil, name); m != nil {
				say(path, types.TypeString(t, func(p *types.Package) string { return p.Name() }))
				return
			}
		}
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for i := range u.NumFields() {
			f := u.Field(i)
			name, _, _ := strings.Cut(reflect.StructTag(u.Tag(i)).Get("json"), ",")
			switch {
			case name == "-":
			case f.Anonymous() && name == "":
				walkType(f.Type(), path, say, seen)
			case f.Exported():
				if name == "" {
					name = f.Name()
				}
				walkType(f.Type(), path+"."+name, say, seen)
			}
		}
	case *types.Slice:
		if b, ok := u.Elem().Underlying().(*types.Basic); ok && b.Kind() == types.Byte {
			say(path, "string")
			return
		}
		walkType(u.Elem(), path+"[]", say, seen)
	case *types.Array:
		walkType(u.Elem(), path+"[]", say, seen)
	case *types.Map:
		walkType(u.Elem(), path+"{}", say, seen)
	case *types.Basic:
		kind := "number"
		if u.Info()&types.IsString != 0 {
			kind = "string"
		} else if u.Info()&types.IsBoolean != 0 {
			kind = "bool"
		}
		say(path, kind)
	default:
		say(path, "any")
	}
}

// exitCodes returns the constants of the command line with their numbers.
func (c *code) exitCodes() []string {
	var out []string
	for id, o := range c.info.Defs {
		if k, ok := o.(*types.Const); ok && k.Pkg().Path() == module+"roles/cli" && strings.HasPrefix(id.Name, "Exit") {
			out = append(out, k.Val().String()+" "+strings.TrimPrefix(id.Name, "Exit"))
		}
	}
	return out
}

// text returns the value of a constant string.
func (c *code) text(e ast.Expr) (string, bool) {
	v := c.info.Types[e].Value
	if v == nil || v.Kind() != constant.String {
		return "", false
	}
	return constant.StringVal(v), true
}

// load type-checks the product's packages. The imports' types come from the build cache.
func load(t *testing.T) *code {
	t.Helper()
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		Error                   *struct{ Err string }
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Error", "-tags", "urfave_cli_no_docs", ".")
	cmd.Dir, cmd.Stderr = "../../..", os.Stderr
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath") // the Makefile's, with whose build cache it compiles nothing
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	export := map[string]string{}
	var product []listed
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		export[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module) {
			product = append(product, p)
		}
	}
	c := &code{fset: token.NewFileSet(), uses: map[types.Object][]place{}, info: &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
	}}
	// A product package that another one imports is the one that was checked here, so that both name the same objects. go list prints
	// a package after its imports.
	checked := map[string]*types.Package{}
	rest := importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(export[path]) })
	conf := types.Config{Importer: imports(func(path string) (*types.Package, error) {
		if p := checked[path]; p != nil {
			return p, nil
		}
		return rest.Import(path)
	})}
	for _, p := range product {
		var syntax []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(c.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			syntax = append(syntax, f)
		}
		pkg, err := conf.Check(p.ImportPath, c.fset, syntax, c.info)
		if err != nil {
			t.Fatal(err)
		}
		checked[p.ImportPath] = pkg
		for _, f := range syntax {
			for _, d := range f.Decls {
				at := place{pkg: pkg}
				if fn, ok := d.(*ast.FuncDecl); ok {
					at.function = c.info.Defs[fn.Name]
				}
				c.visit(d, at)
			}
		}
	}
	return c
}

type imports func(string) (*types.Package, error)

func (f imports) Import(path string) (*types.Package, error) { return f(path) }

// visit records the calls and uses of functions below a node.
func (c *code) visit(n ast.Node, at place) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			kind, name := c.commandLine(n)
			if kind, ok := strings.CutSuffix(kind, "Flag"); ok {
				c.flags = append(c.flags, option{at, name, strings.ToLower(kind)})
			}
			if kind != "Command" {
				return true
			}
			inner := at
			inner.command = strings.TrimSpace(strings.TrimPrefix(at.command, root) + " " + name)
			for _, el := range n.Elts {
				c.visit(el, inner)
			}
			return false
		case *ast.CallExpr:
			if callee := c.callee(n.Fun); callee != nil {
				c.calls = append(c.calls, call{at, callee, n.Args})
			}
		case *ast.Ident:
			if f, ok := c.info.Uses[n].(*types.Func); ok && f.Pkg() != nil && strings.HasPrefix(f.Pkg().Path(), module) {
				c.uses[origin(f)] = append(c.uses[origin(f)], at)
			}
		}
		return true
	})
}

// commandLine returns the type and the name in the literal of a command or a flag.
func (c *code) commandLine(lit *ast.CompositeLit) (kind, name string) {
	t := c.info.TypeOf(lit)
	if p, ok := t.Underlying().(*types.Pointer); ok { // an element of a list of pointers
		t = p.Elem()
	}
	named, ok := t.(*types.Named)
	if !ok || named.Obj().Pkg() == nil || named.Obj().Pkg().Path() != "github.com/urfave/cli/v2" {
		return "", ""
	}
	name = "…"
	for _, el := range lit.Elts {
		if kv, ok := el.(*ast.KeyValueExpr); ok && types.ExprString(kv.Key) == "Name" {
			if s, ok := c.text(kv.Value); ok {
				name = s
			}
		}
	}
	return named.Obj().Name(), name
}

// callee returns the function of a call, or nil if it is a value.
func (c *code) callee(e ast.Expr) types.Object {
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
		f, _ := c.info.Uses[e].(*types.Func)
		return object(f)
	case *ast.SelectorExpr:
		f, _ := c.info.Uses[e.Sel].(*types.Func)
		return object(f)
	case *ast.IndexExpr:
		return c.callee(e.X)
	}
	return nil
}

func object(f *types.Func) types.Object {
	if f == nil {
		return nil
	}
	return f
}

// origin returns the generic function of an instance.
func origin(o types.Object) types.Object {
	if f, ok := o.(*types.Func); ok {
		return f.Origin()
	}
	return o
}
