// Apache's Go client, as many producers and consumers as a test needs, in one process.
//
// It takes the same commands as ClientShell.java, and answers in the same way: each line of standard input is a JSON
// object with "do", "id" and arguments; each line of standard output is an answer or an event. Commands run at the same
// time; who wants an order awaits the answers.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type object = map[string]interface{}

type described struct {
	Topic      string            `json:"topic"`
	Body       string            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Properties map[string]string `json:"properties"`
	DelayLevel int               `json:"delayLevel"`
	OrderKey   string            `json:"orderKey"`
}

type command struct {
	Do            string            `json:"do"`
	ID            int               `json:"id"`
	Of            string            `json:"of"`
	Group         string            `json:"group"`
	NameServers   string            `json:"nameServers"`
	AccessKey     string            `json:"accessKey"`
	SecretKey     string            `json:"secretKey"`
	Transactional bool              `json:"transactional"`
	Oneway        bool              `json:"oneway"`
	Async         bool              `json:"async"`
	TimeoutMs     int               `json:"timeoutMs"`
	Messages      []described       `json:"messages"`
	Subscriptions map[string]string `json:"subscriptions"`
	SQL           bool              `json:"sql"`
	Orderly       bool              `json:"orderly"`
	Model         string            `json:"model"`
	From          string            `json:"from"`
	Failures      int32             `json:"failures"`
	ReconsumeMax  int32             `json:"reconsumeTimesMax"`
	Replies       bool              `json:"replies"`
	described
}

type transactional struct {
	rocketmq.TransactionProducer
}

type puller struct {
	rocketmq.PullConsumer
	done chan struct{}
	gone chan struct{}
}

var (
	clients   sync.Map
	listening sync.Map // from a push consumer's name to that of the producer of its replies
	output    sync.Mutex
	stdout    = bufio.NewWriter(os.Stdout)
)

func say(line object) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	output.Lock()
	defer output.Unlock()
	stdout.Write(append(text, '\n'))
	stdout.Flush()
}

func main() {
	rlog.SetLogLevel("error")
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	say(object{"event": "ready"})
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			os.Exit(0)
		}
		var asked command
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		go answer(asked)
	}
}

func answer(asked command) {
	result, err := run(asked)
	if err != nil {
		say(object{"id": asked.ID, "error": err.Error()})
		return
	}
	say(object{"id": asked.ID, "result": result})
}

func run(asked command) (interface{}, error) {
	switch asked.Do {
	case "producer":
		return startProducer(asked)
	case "send":
		return send(asked)
	case "sendBatch":
		return sendBatch(asked)
	case "request":
		return request(asked)
	case "consumer":
		return startConsumer(asked)
	case "pullConsumer":
		return startPullConsumer(asked)
	case "stop":
		return nil, stop(asked.Of)
	}
	return nil, fmt.Errorf("no such command: %s", asked.Do)
}

// ---------------------------------------------------------------------------------------------------------- producers

func producerOptions(asked command, instance string) []producer.Option {
	options := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(asked.NameServers, ";"))),
		producer.WithGroupName(asked.Group),
		producer.WithInstanceName(instance),
		producer.WithSendMsgTimeout(5 * time.Second),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	}
	if asked.AccessKey != "" {
		options = append(options, producer.WithCredentials(credentials(asked)))
	}
	return options
}

func credentials(asked command) primitive.Credentials {
	return primitive.Credentials{AccessKey: asked.AccessKey, SecretKey: asked.SecretKey}
}

func startProducer(asked command) (interface{}, error) {
	if asked.Transactional {
		made, err := rocketmq.NewTransactionProducer(&scripted{asked.Of}, producerOptions(asked, asked.Of)...)
		if err != nil {
			return nil, err
		}
		clients.Store(asked.Of, transactional{made})
		return asked.Of, made.Start()
	}
	made, err := rocketmq.NewProducer(producerOptions(asked, asked.Of)...)
	if err != nil {
		return nil, err
	}
	clients.Store(asked.Of, made)
	return asked.Of, made.Start()
}

func message(from described) (*primitive.Message, error) {
	body, err := base64.StdEncoding.DecodeString(from.Body)
	if err != nil {
		return nil, err
	}
	made := primitive.NewMessage(from.Topic, body)
	for key, value := range from.Properties {
		made.WithProperty(key, value)
	}
	if from.Tag != "" {
		made.WithTag(from.Tag)
	}
	if len(from.Keys) > 0 {
		made.WithKeys(from.Keys)
	}
	if from.DelayLevel > 0 {
		made.WithDelayTimeLevel(from.DelayLevel)
	}
	if from.OrderKey != "" {
		made.WithShardingKey(from.OrderKey)
	}
	return made, nil
}

func send(asked command) (interface{}, error) {
	made, err := message(asked.described)
	if err != nil {
		return nil, err
	}
	client, _ := clients.Load(asked.Of)
	if by, ok := client.(transactional); ok {
		result, err := by.SendMessageInTransaction(context.Background(), made)
		if err != nil {
			return nil, err
		}
		return sent(result.SendResult), nil
	}
	by := client.(rocketmq.Producer)
	if asked.Oneway {
		return nil, by.SendOneWay(context.Background(), made)
	}
	if asked.Async {
		return sendAsync(by, made)
	}
	result, err := by.SendSync(context.Background(), made)
	if err != nil {
		return nil, err
	}
	return sent(result), nil
}

func sendAsync(by rocketmq.Producer, made *primitive.Message) (interface{}, error) {
	type outcome struct {
		result *primitive.SendResult
		err    error
	}
	done := make(chan outcome, 1)
	called := func(_ context.Context, result *primitive.SendResult, err error) { done <- outcome{result, err} }
	if err := by.SendAsync(context.Background(), called, made); err != nil {
		return nil, err
	}
	got := <-done
	if got.err != nil {
		return nil, got.err
	}
	return sent(got.result), nil
}

func sendBatch(asked command) (interface{}, error) {
	var batch []*primitive.Message
	for _, each := range asked.Messages {
		made, err := message(each)
		if err != nil {
			return nil, err
		}
		batch = append(batch, made)
	}
	client, _ := clients.Load(asked.Of)
	result, err := client.(rocketmq.Producer).SendSync(context.Background(), batch...)
	if err != nil {
		return nil, err
	}
	return sent(result), nil
}

func request(asked command) (interface{}, error) {
	made, err := message(asked.described)
	if err != nil {
		return nil, err
	}
	client, _ := clients.Load(asked.Of)
	ttl := time.Duration(asked.TimeoutMs) * time.Millisecond
	reply, err := client.(rocketmq.Producer).Request(context.Background(), ttl, made)
	if err != nil {
		return nil, err
	}
	return describe(reply), nil
}

func sent(result *primitive.SendResult) object {
	statuses := map[primitive.SendStatus]string{primitive.SendOK: "SEND_OK"}
	status, ok := statuses[result.Status]
	if !ok {
		status = strconv.Itoa(int(result.Status))
	}
	return object{
		"status": status, "msgId": result.MsgID, "broker": result.MessageQueue.BrokerName,
		"queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset,
	}
}

// A transaction's outcome, and what each check-back answers, stand on the message itself.
type scripted struct {
	name string
}

func (s *scripted) ExecuteLocalTransaction(sent *primitive.Message) primitive.LocalTransactionState {
	return state(sent.GetProperty("outcome"))
}

func (s *scripted) CheckLocalTransaction(asked *primitive.MessageExt) primitive.LocalTransactionState {
	told := describeStored(asked)
	told["event"], told["of"] = "check", s.name
	say(told)
	checks := strings.Split(asked.GetProperty("checks"), ",")
	times, err := strconv.Atoi(asked.GetProperty("TRANSACTION_CHECK_TIMES"))
	if err != nil || times < 1 {
		return primitive.UnknowState
	}
	if times > len(checks) {
		times = len(checks)
	}
	return state(checks[times-1])
}

func state(word string) primitive.LocalTransactionState {
	switch word {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

// ---------------------------------------------------------------------------------------------------------- consumers

func consumerOptions(asked command) []consumer.Option {
	from := consumer.ConsumeFromLastOffset
	if asked.From == "CONSUME_FROM_FIRST_OFFSET" {
		from = consumer.ConsumeFromFirstOffset
	}
	model := consumer.Clustering
	if asked.Model == "BROADCASTING" {
		model = consumer.BroadCasting
	}
	options := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(asked.NameServers, ";"))),
		consumer.WithGroupName(asked.Group),
		consumer.WithInstance(asked.Of),
		consumer.WithConsumeFromWhere(from),
		consumer.WithConsumerModel(model),
		consumer.WithConsumerOrder(asked.Orderly),
		consumer.WithSuspendCurrentQueueTimeMillis(100 * time.Millisecond),
	}
	if asked.AccessKey != "" {
		options = append(options, consumer.WithCredentials(credentials(asked)))
	}
	if asked.ReconsumeMax >= 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(asked.ReconsumeMax))
	}
	return options
}

func startConsumer(asked command) (interface{}, error) {
	made, err := rocketmq.NewPushConsumer(consumerOptions(asked)...)
	if err != nil {
		return nil, err
	}
	var replies rocketmq.Producer
	if asked.Replies {
		replies, err = rocketmq.NewProducer(producerOptions(asked, asked.Of+"-replies")...)
		if err != nil {
			return nil, err
		}
		if err := replies.Start(); err != nil {
			return nil, err
		}
		clients.Store(asked.Of+"-replies", replies)
		listening.Store(asked.Of, asked.Of+"-replies")
	}
	handle := func(_ context.Context, got ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range got {
			received(asked.Of, each)
			if replies != nil {
				if err := reply(replies, each); err != nil {
					return consumer.ConsumeRetryLater, err
				}
			}
		}
		if got[0].ReconsumeTimes < asked.Failures {
			if asked.Orderly {
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	for topic, expression := range asked.Subscriptions {
		if err := made.Subscribe(topic, selector(asked, expression), handle); err != nil {
			return nil, err
		}
	}
	clients.Store(asked.Of, made)
	return asked.Of, made.Start()
}

func selector(asked command, expression string) consumer.MessageSelector {
	if asked.SQL {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: expression}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

func reply(by rocketmq.Producer, question *primitive.MessageExt) error {
	made, err := consumer.CreateReplyMessage(question, nil)
	if err != nil {
		return err
	}
	made.Body = append([]byte("reply to "), question.Body...)
	_, err = by.SendSync(context.Background(), made)
	return err
}

func startPullConsumer(asked command) (interface{}, error) {
	made, err := rocketmq.NewPullConsumer(consumerOptions(asked)...)
	if err != nil {
		return nil, err
	}
	for topic, expression := range asked.Subscriptions {
		if err := made.Subscribe(topic, selector(asked, expression)); err != nil {
			return nil, err
		}
	}
	if err := made.Start(); err != nil {
		return nil, err
	}
	pulling := puller{made, make(chan struct{}), make(chan struct{})}
	clients.Store(asked.Of, pulling)
	go func() {
		defer close(pulling.gone)
		for {
			select {
			case <-pulling.done:
				return
			default:
			}
			got, err := made.Poll(context.Background(), 500*time.Millisecond)
			if err != nil {
				continue
			}
			for _, each := range got.GetMsgList() {
				received(asked.Of, each)
			}
			made.ACK(context.Background(), got, consumer.ConsumeSuccess)
		}
	}()
	return asked.Of, nil
}

func received(name string, got *primitive.MessageExt) {
	told := describeStored(got)
	told["event"], told["of"] = "message", name
	say(told)
}

func describe(from *primitive.Message) object {
	return object{
		"topic": from.Topic, "tag": from.GetTags(), "keys": from.GetKeys(),
		"body": base64.StdEncoding.EncodeToString(from.Body), "properties": from.GetProperties(),
	}
}

func describeStored(from *primitive.MessageExt) object {
	told := describe(&from.Message)
	told["msgId"], told["sysFlag"], told["reconsumeTimes"] = from.MsgId, from.SysFlag, from.ReconsumeTimes
	told["bornMs"], told["storedMs"], told["queueOffset"] = from.BornTimestamp, from.StoreTimestamp, from.QueueOffset
	if from.Queue != nil {
		told["queueId"], told["broker"] = from.Queue.QueueId, from.Queue.BrokerName
	}
	return told
}

func stop(name string) error {
	client, _ := clients.Load(name)
	clients.Delete(name)
	switch client := client.(type) {
	case transactional:
		return client.Shutdown()
	case puller:
		close(client.done)
		<-client.gone
		return client.Shutdown()
	case rocketmq.Producer:
		return client.Shutdown()
	case rocketmq.PushConsumer:
		if replies, ok := listening.Load(name); ok {
			if err := stop(replies.(string)); err != nil {
				return err
			}
		}
		return client.Shutdown()
	}
	return fmt.Errorf("no such client: %s", name)
}
