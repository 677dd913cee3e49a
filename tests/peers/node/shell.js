'use strict';

// Node's ali-ons, as many producers and consumers as a test needs, in one process.
//
// It takes the same commands as ClientShell.java, and answers in the same way: each line of standard input is a JSON
// object with "do", "id" and arguments; each line of standard output is an answer or an event. What ali-ons has no
// words for (one-way, batches, transactions, order, pulling) is answered with an error.

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const clients = new Map();
const quiet = { debug() {}, info() {}, warn() {}, error: (...words) => console.error(...words) };
const noHttp = { request: () => Promise.reject(new Error('name servers are given, nobody needs to be asked')) };

function say(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

// It signs whatever it sends, as in the cloud that it was made for; a broker without users does not look.
function connected(command, more) {
  return {
    httpclient: noHttp,
    logger: quiet,
    nameSrv: command.nameServers.split(';'),
    clientIP: '127.0.0.1',
    instanceName: command.of,
    accessKeyId: command.accessKey || 'node',
    accessKeySecret: command.secretKey || 'secret-of-node',
    pollNameServerInteval: 1000,
    heartbeatBrokerInterval: 2000,
    persistConsumerOffsetInterval: 1000,
    rebalanceInterval: 1000,
    ...more,
  };
}

function describe(message) {
  return {
    topic: message.topic,
    tag: message.tags || null,
    keys: message.keys || null,
    body: message.body.toString('base64'),
    properties: message.properties,
    msgId: message.msgId,
    queueId: Number(message.queueId),
    queueOffset: Number(message.queueOffset),
    sysFlag: message.sysFlag,
    reconsumeTimes: message.reconsumeTimes,
    bornMs: Number(message.bornTimestamp),
    storedMs: Number(message.storeTimestamp),
  };
}

const commands = {
  async producer(command) {
    const producer = new Producer(connected(command, { producerGroup: command.group }));
    producer.on('error', error => console.error(error));
    await producer.ready();
    clients.set(command.of, producer);
    return producer.clientId;
  },

  async send(command) {
    if (command.oneway || command.async || command.orderKey) {
      throw new Error('ali-ons cannot do that');
    }
    const message = new Message(command.topic, command.tag || '', Buffer.from(command.body, 'base64'));
    if (!command.tag) {
      delete message.properties.TAGS;
    }
    if (command.keys) {
      message.keys = command.keys;
    }
    if (command.delayLevel) {
      message.delayTimeLevel = command.delayLevel;
    }
    if (command.deliverAtMs) {
      message.properties.TIMER_DELIVER_MS = String(command.deliverAtMs);
    }
    Object.assign(message.properties, command.properties);
    const sent = await clients.get(command.of).send(message);
    return {
      status: sent.sendStatus,
      msgId: sent.msgId,
      broker: sent.messageQueue.brokerName,
      queueId: Number(sent.messageQueue.queueId),
      queueOffset: Number(sent.queueOffset),
    };
  },

  async consumer(command) {
    if (command.orderly || command.replies) {
      throw new Error('ali-ons cannot do that');
    }
    const consumer = new Consumer(connected(command, {
      consumerGroup: command.group,
      isBroadcast: command.model === 'BROADCASTING',
      consumeFromWhere: command.from,
      maxReconsumeTimes: command.reconsumeTimesMax >= 0 ? command.reconsumeTimesMax : 16,
    }));
    consumer.on('error', error => console.error(error));
    for (const [ topic, expression ] of Object.entries(command.subscriptions)) {
      const wanted = command.sql ? { expressionType: 'SQL92', subString: expression } : expression;
      consumer.subscribe(topic, wanted, async message => {
        say({ event: 'message', of: command.of, ...describe(message) });
        if (message.reconsumeTimes < command.failures) {
          throw new Error('told to refuse it');
        }
      });
    }
    await consumer.ready();
    clients.set(command.of, consumer);
    return consumer.clientId;
  },

  async stop(command) {
    const client = clients.get(command.of);
    clients.delete(command.of);
    await client.close();
    return null;
  },
};

async function answer(command) {
  try {
    if (!commands[command.do]) {
      throw new Error(`no such command: ${command.do}`);
    }
    say({ id: command.id, result: await commands[command.do](command) });
  } catch (error) {
    console.error(error);
    say({ id: command.id, error: String(error), code: error.code });
  }
}

readline.createInterface({ input: process.stdin })
  .on('line', line => answer(JSON.parse(line)))
  .on('close', () => process.exit(0));
say({ event: 'ready' });
