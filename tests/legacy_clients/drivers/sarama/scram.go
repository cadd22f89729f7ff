// Sarama since it takes a client of SCRAM, which it leaves to others.
package main

import (
	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

func init() {
	mechanisms["SCRAM-SHA-256"] = func(config *sarama.Config) {
		useScram(config, sarama.SASLTypeSCRAMSHA256, scram.SHA256)
	}
	mechanisms["SCRAM-SHA-512"] = func(config *sarama.Config) {
		useScram(config, sarama.SASLTypeSCRAMSHA512, scram.SHA512)
	}
}

func useScram(
	config *sarama.Config, mechanism sarama.SASLMechanism, hash scram.HashGeneratorFcn,
) {
	config.Net.SASL.Mechanism = mechanism
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
		return &scramClient{hash: hash}
	}
}

type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (c *scramClient) Begin(name, password, authorizationID string) error {
	client, err := c.hash.NewClient(name, password, authorizationID)
	if err != nil {
		return err
	}
	c.conversation = client.NewConversation()
	return nil
}

func (c *scramClient) Step(challenge string) (string, error) {
	return c.conversation.Step(challenge)
}

func (c *scramClient) Done() bool { return c.conversation.Done() }
