package attach

import (
	"errors"

	"github.com/cnibox/cnibox/roles"
)

// InterfaceRole completes the table entry of an interface role. build gets a
// configuration with its defaults set. The configuration is valid, except during Undo.
func InterfaceRole[T any, C roles.Conf[T]](r roles.Role, build func(C) SpecBuilder) roles.Role {
	r.Kind = roles.Interface
	return complete(r, func(c C) roles.Handler {
		return &Handler{role: build(c), name: r.Name(), ipam: c.Common().IPAM.Type}
	})
}

// ChainedRole completes the table entry of a chained role, as InterfaceRole does.
func ChainedRole[T any, C roles.Conf[T]](r roles.Role, build func(C) Chained) roles.Role {
	r.Kind = roles.Chained
	return complete(r, func(c C) roles.Handler { return &ChainedHandler{role: build(c), name: r.Name()} })
}

// complete sets Conf, New and Undo, which follow from the type of the role's
// configuration. Undo calls the configuration's method ForUndo, if it has one.
func complete[T any, C roles.Conf[T]](r roles.Role, handler func(C) roles.Handler) roles.Role {
	r.Conf = func() any { return C(new(T)) }
	r.New = func(raw []byte) (roles.Handler, error) {
		c, err := roles.ReadConf[T, C](raw)
		if err != nil {
			return nil, err
		}
		return handler(c), nil
	}
	r.Undo = func(raw []byte) (roles.Handler, error) {
		c, err := roles.DecodeConf[T, C](raw)
		if err != nil && !errors.Is(err, roles.ErrConf) {
			return nil, err
		}
		if u, ok := any(c).(interface{ ForUndo() }); ok {
			u.ForUndo()
		}
		return handler(c), nil
	}
	return r
}
