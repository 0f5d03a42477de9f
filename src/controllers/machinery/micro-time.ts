/** As Kubernetes writes times that have microseconds. */
export const microTime = (ms: number): string => new Date(ms).toISOString().replace('Z', '000Z');
