/** The names of the leader's objects, all in Stowage's own namespace. The chart's Service uses the same names. */
export const leaderObjectNames = {
  service: 'stowage',
  slice: 'stowage-leader',
  /** The name of the only port of the Service and of the EndpointSlice; Kubernetes matches them by it. */
  port: 'https',
  secret: 'stowage-tls',
  authority: 'stowage-ca',
  /** The key in the ConfigMap `authority`. */
  authorityKey: 'ca.crt',
} as const;

/** The path at which an agent requests an HTTP upgrade, and the protocol that it upgrades to. */
export const agentUpgrade = { path: '/agents', protocol: 'stowage-agent/1' } as const;

/** The path at which an agent requests a pod of its node. */
export const podPath = {
  format: (namespace: string, name: string): string => `/agents/pods/${namespace}/${name}`,
  pattern: /^\/agents\/pods\/([a-z0-9-]{1,63})\/([a-z0-9.-]{1,253})$/,
} as const;

/** The audiences of the tokens of agents and of users. */
export const audiences = { agents: 'stowage.dev/controller', users: 'stowage.dev' } as const;

export const agentAccount = (namespace: string): string => `system:serviceaccount:${namespace}:stowage-agent`;

/** The names in the server's certificate. Agents verify it against the first name, whichever address they connect to. */
export const serverNames = (namespace: string): readonly [string, ...string[]] => [
  `${leaderObjectNames.service}.${namespace}.svc`,
  `${leaderObjectNames.service}.${namespace}.svc.cluster.local`,
  leaderObjectNames.service,
];
