/** What the door's objects are called; all are in Stowage's own namespace. The chart's Service has the same names. */
export const leaderObjectNames = {
  service: 'stowage',
  slice: 'stowage-leader',
  /** Of the one port of the Service and of the EndpointSlice: Kubernetes joins them by it. */
  port: 'https',
  secret: 'stowage-tls',
  authority: 'stowage-ca',
  /** Of that ConfigMap. */
  authorityKey: 'ca.crt',
} as const;

/** The path at which an agent asks to be turned round, and what it asks to be turned to. */
export const upgrade = { path: '/agents', protocol: 'stowage-agent/1' } as const;

/** Where an agent asks about a pod of its node. */
export const podPath = {
  of: (namespace: string, name: string): string => `/agents/pods/${namespace}/${name}`,
  pattern: /^\/agents\/pods\/([a-z0-9-]{1,63})\/([a-z0-9.-]{1,253})$/,
} as const;

/** Whom a token must be meant for: that of an agent, that of a user. */
export const audiences = { agents: 'stowage.dev/controller', users: 'stowage.dev' } as const;

export const agentAccount = (namespace: string): string => `system:serviceaccount:${namespace}:stowage-agent`;

/** The first is what agents expect to find in the certificate, by whatever address they come. */
export const serverNames = (namespace: string): readonly [string, ...string[]] => [
  `${leaderObjectNames.service}.${namespace}.svc`,
  `${leaderObjectNames.service}.${namespace}.svc.cluster.local`,
  leaderObjectNames.service,
];
