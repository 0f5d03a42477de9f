/** On containers that Stowage makes: a keeper's name, the network that an anchor holds, and which Stowage made it. */
export const containerLabels = {
  keeper: 'stowage.dev/keeper',
  anchor: 'stowage.dev/anchor',
  instance: 'stowage.dev/instance',
} as const;
