package attach

import (
	"errors"
	"reflect"

	"github.com/cnibox/cnibox/roles"
)

// InterfaceRole completes the table entry of an interface role. build gets a
// configuration with its defaults set. The configuration is valid, except during Undo.
func InterfaceRole[C roles.Conf](r roles.Role, build func(C) SpecBuilder) roles.Role {
	r.Kind = roles.Interface
	return complete(r, reflect.TypeFor[C](), func(c roles.Conf) roles.Handler {
		return &Handler{role: build(c.(C)), name: r.Name(), ipam: c.Common().IPAM.Type} //nolint:forcetypeassert // complete made it
	})
}

// ChainedRole completes the table entry of a chained role, as InterfaceRole does.
func ChainedRole[C roles.Conf](r roles.Role, build func(C) Chained) roles.Role {
	r.Kind = roles.Chained
	return complete(r, reflect.TypeFor[C](), func(c roles.Conf) roles.Handler {
		return &ChainedHandler{role: build(c.(C)), name: r.Name()} //nolint:forcetypeassert // complete made it
	})
}

// complete sets Conf, New and Undo, which follow from the type of the role's
// configuration. Undo calls the configuration's method ForUndo, if it has one.
func complete(r roles.Role, pointer reflect.Type, handler func(roles.Conf) roles.Handler) roles.Role {
	empty := func() roles.Conf {
		return reflect.New(pointer.Elem()).Interface().(roles.Conf) //nolint:forcetypeassert // C implements it
	}
	r.Conf = func() any { return empty() }
	r.New = func(raw []byte) (roles.Handler, error) {
		c := empty()
		if err := roles.ReadConf(raw, c); err != nil {
			return nil, err
		}
		return handler(c), nil
	}
	r.Undo = func(raw []byte) (roles.Handler, error) {
		c := empty()
		if err := roles.DecodeConf(raw, c); err != nil && !errors.Is(err, roles.ErrConf) {
			return nil, err
		}
		if u, ok := c.(interface{ ForUndo() }); ok {
			u.ForUndo()
		}
		return handler(c), nil
	}
	return r
}
