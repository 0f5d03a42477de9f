import type { Connection } from './connection.ts';
import { type HeldDescriptors, sendHeldDescriptors } from './held-descriptors.ts';
import type { KeeperState } from './protocol.ts';

/** The agents that are connected to a keeper. */
export interface Agents {
  add(connection: Connection): void;
  remove(connection: Connection): void;
  /** Sends the state to all agents. Returns false, and sends nothing, if the state equals the last one that was sent. */
  sendState(state: KeeperState): boolean;
  /** Sends copies of everything, and from then on every change. */
  share(connection: Connection, held: HeldDescriptors): void;
  /** Sends copies of `held`, and from then on every change, to all agents for which `share` was called. */
  shareAll(held: HeldDescriptors): void;
}

export function createAgents(): Agents {
  const agents = new Set<Connection>();
  /** Agents that hold copies of everything. */
  const holders = new Set<Connection>();
  let lastSentState = '';

  return {
    add: (connection) => {
      agents.add(connection);
    },
    remove: (connection) => {
      agents.delete(connection);
      holders.delete(connection);
    },
    sendState: (state) => {
      const text = JSON.stringify(state);
      if (text === lastSentState) return false;
      lastSentState = text;
      for (const agent of agents) agent.send({ kind: 'state', ask: 0, state });
      return true;
    },
    share: (connection, held) => {
      holders.add(connection);
      sendHeldDescriptors(connection, held, 'everything');
    },
    shareAll: (held) => {
      held.watch((message, descriptors) => {
        for (const holder of holders) holder.send(message, descriptors);
      });
      for (const holder of holders) sendHeldDescriptors(holder, held, 'everything');
    },
  };
}
