// Sarama since it takes a provider of tokens. The token is given as the password.
package main

import "github.com/IBM/sarama"

func init() {
	mechanisms["OAUTHBEARER"] = func(config *sarama.Config) {
		config.Net.SASL.Mechanism = sarama.SASLTypeOAuth
		config.Net.SASL.TokenProvider = fixedToken(config.Net.SASL.Password)
	}
}

type fixedToken string

func (t fixedToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}
