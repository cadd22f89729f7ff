// Sarama since it takes a keytab. Its file is given as the password, the user as NAME@REALM.
package main

import (
	"os"
	"strings"

	"github.com/IBM/sarama"
)

func init() {
	mechanisms["GSSAPI"] = func(config *sarama.Config) {
		name, realm, _ := strings.Cut(config.Net.SASL.User, "@")
		config.Net.SASL.Mechanism = sarama.SASLTypeGSSAPI
		config.Net.SASL.GSSAPI = sarama.GSSAPIConfig{
			AuthType:           sarama.KRB5_KEYTAB_AUTH,
			KeyTabPath:         config.Net.SASL.Password,
			KerberosConfigPath: os.Getenv("KRB5_CONFIG"),
			ServiceName:        "kafka",
			Username:           name,
			Realm:              realm,
		}
	}
}
