/** Labels of containers that Stowage creates: the keeper's name, the network that an anchor is attached to, and the Stowage instance. */
export const containerLabels = {
  keeper: 'stowage.dev/keeper',
  anchor: 'stowage.dev/anchor',
  instance: 'stowage.dev/instance',
} as const;
