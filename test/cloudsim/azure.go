package cloudsim

import (
	"fmt"
	"net/http"
	"strings"
)

// azure is the host's agent ("wireserver"), which answers each node about itself. It needs no header, and its answer has neither
// gateway nor MTU nor network.
func azure() *provider {
	return &provider{
		name: "azure", at: []string{"168.63.129.16:80", "169.254.169.254:80"},
		below: []string{"/machine/"}, serve: serveAzure,
	}
}

func serveAzure(q *query) reply {
	if q.Method != http.MethodGet {
		return page(http.StatusMethodNotAllowed)
	}
	v := q.URL.Query()
	if strings.TrimSuffix(q.path, "/") != "/machine/plugins" || v.Get("comp") != "nmagent" || v.Get("type") != "getinterfaceinfov1" {
		return page(http.StatusNotFound)
	}
	return answer(http.StatusOK, typeXML, azureXML(q.view)).with("Server", "Microsoft-IIS/10.0")
}

// azureXML writes no white space, as the original.
func azureXML(v *view) string {
	var b strings.Builder
	b.WriteString("<Interfaces>")
	for i := range v.nics {
		n := &v.nics[i]
		fmt.Fprintf(&b, "<Interface MacAddress=\"%s\" IsPrimary=\"%t\">", attribute(v.write(n, macUpper)), n.Primary)
		for _, s := range n.Subnets {
			fmt.Fprintf(&b, "<IPSubnet Prefix=\"%s\">", s.Prefix)
			for _, a := range s.Own {
				fmt.Fprintf(&b, "<IPAddress Address=\"%s\" IsPrimary=\"true\"/>", a)
			}
			for _, a := range s.Addresses {
				fmt.Fprintf(&b, "<IPAddress Address=\"%s\" IsPrimary=\"false\"/>", a)
			}
			b.WriteString("</IPSubnet>")
		}
		b.WriteString("</Interface>")
	}
	b.WriteString("</Interfaces>")
	return b.String()
}

// attribute escapes the value of an attribute.
func attribute(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", "\"", "&quot;").Replace(s)
}
